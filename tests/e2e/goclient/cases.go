package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func (c *client) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.target.url+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.target.token)
	return c.Do(request)
}

// runDownload reads bodies at the same time, through the windows that the flags say.
func runDownload(arguments []string) outcome {
	flags := flag.NewFlagSet("download", flag.ExitOnError)
	t := targetFlags(flags)
	size := flags.Int("bytes", 100<<20, "of each body")
	count := flags.Int("count", 1, "downloads at the same time, on one connection")
	flags.Parse(arguments)
	t.resolve()
	t.most = 1
	c, failed := newClient(t), &failures{}
	wanted := crc32.NewIEEE()
	io.Copy(wanted, patternOf(*size))
	var group sync.WaitGroup
	protocol := ""
	for range *count {
		group.Go(func() {
			response, err := c.request(context.Background(), "GET", "/big?bytes="+strconv.Itoa(*size), nil)
			if err != nil {
				failed.add("%v", err)
				return
			}
			defer response.Body.Close()
			sum := crc32.NewIEEE()
			if got, err := io.CopyBuffer(struct{ io.Writer }{sum}, response.Body, make([]byte, 4096)); err != nil {
				failed.add("after %d bytes: %v", got, err)
			} else if sum.Sum32() != wanted.Sum32() {
				failed.add("%d bytes that are not those sent", got)
			}
			protocol = response.Proto
		})
	}
	group.Wait()
	return failed.into(outcome{"connections": c.connections.Load(), "protocol": protocol, "errors": c.counted()})
}

// runUpload sends a body of unknown length after 100-continue, with a trailer, and reads an answer with one.
func runUpload(arguments []string) outcome {
	flags := flag.NewFlagSet("upload", flag.ExitOnError)
	t := targetFlags(flags)
	size := flags.Int("bytes", 8<<20, "of the body")
	flags.Parse(arguments)
	t.resolve()
	c, failed := newClient(t), &failures{}
	sum, continued := crc32.NewIEEE(), false
	request, _ := http.NewRequest("POST", t.url+"/upload", io.TeeReader(patternOf(*size), sum))
	trace := &httptrace.ClientTrace{Got100Continue: func() { continued = true }}
	request = request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
	request.Header.Set("Expect", "100-continue")
	request.Header.Set("TE", "trailers") // else trailers may be left out (RFC 9110 6.5.1), and are
	request.Trailer = http.Header{"X-Sum": nil}
	request.Body = &atEnd{request.Body, func() { request.Trailer.Set("X-Sum", fmt.Sprint(sum.Sum32())) }}
	found := outcome{}
	response, err := c.Do(request)
	if err != nil {
		failed.add("%v", err)
		return failed.into(found)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		failed.add("%v", err)
	}
	seen := map[string]any{}
	if err := json.Unmarshal(body, &seen); err != nil {
		failed.add("%d %s: %v", response.StatusCode, body, err)
	}
	found["seen"], found["sum"], found["continued"] = seen, sum.Sum32(), continued
	found["trailer"], found["protocol"] = response.Trailer.Get("X-Bytes"), response.Proto
	return failed.into(found)
}

// atEnd calls `ended` when a body was read to its end.
type atEnd struct {
	io.ReadCloser
	ended func()
}

func (a *atEnd) Read(buffer []byte) (int, error) {
	count, err := a.ReadCloser.Read(buffer)
	if err == io.EOF {
		a.ended()
	}
	return count, err
}

var serial atomic.Int64

// post creates something with an id of its own, and checks the answer.
func (c *client) post(ctx context.Context) error {
	id := fmt.Sprintf("%d-%d", os.Getpid(), serial.Add(1))
	body := bytes.Repeat([]byte(id+" "), 100)
	request, err := http.NewRequestWithContext(ctx, "POST", c.target.url+"/api/v1/namespaces/demo/configmaps", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Id", id)
	request.Header.Set("Authorization", "Bearer "+c.target.token)
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != 201 || !bytes.Equal(got, body)) {
		err = fmt.Errorf("%d %.200s", response.StatusCode, got)
	}
	return err
}

// get lists, and checks the answer.
func (c *client) get(ctx context.Context) error { return c.list(ctx, "demo") }

// list gets a list of a namespace and checks the answer.
func (c *client) list(ctx context.Context, namespace string) error {
	response, err := c.request(ctx, "GET", fmt.Sprintf("/api/v1/namespaces/%s/pods?limit=%d", namespace, rand.Intn(500)), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != 200 || !bytes.Contains(got, []byte("PodList"))) {
		err = fmt.Errorf("%d %.200s", response.StatusCode, got)
	}
	return err
}

// runLoad reads and writes until standard input ends; every failure counts.
func runLoad(arguments []string) outcome {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	t := targetFlags(flags)
	workers := flags.Int("workers", 8, "requests at the same time for each client")
	clients := flags.Int("clients", 2, "clients, each with connections of its own")
	reads := flags.Bool("reads", false, "no writes")
	flags.Parse(arguments)
	t.resolve()
	ended, failed := stdinEnds(), &failures{}
	var done, connections atomic.Int64
	var group sync.WaitGroup
	all := []*client{}
	for range *clients {
		c := newClient(t)
		all = append(all, c)
		if err := c.get(context.Background()); err != nil { // else each worker would begin with a connection of its own
			failed.add("%v", err)
		}
		for worker := range *workers {
			group.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					var err error
					if worker%2 == 0 || *reads {
						err = c.get(context.Background())
					} else {
						err = c.post(context.Background())
					}
					if err != nil {
						failed.add("%v", err)
					}
					done.Add(1)
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	show(outcome{"ready": true})
	group.Wait()
	errors := map[string]int{}
	for _, c := range all {
		connections.Add(c.connections.Load())
		for kind, count := range c.counted() {
			errors[kind] += count
		}
	}
	return failed.into(outcome{"done": done.Load(), "connections": connections.Load(), "errors": errors})
}

// runBurst posts much at once over connections whose SETTINGS are not read yet, so that more streams begin than may.
//
// It goes on with further connections until some were refused: SETTINGS may have come in time.
func runBurst(arguments []string) outcome {
	flags := flag.NewFlagSet("burst", flag.ExitOnError)
	t := targetFlags(flags)
	count := flags.Int("count", 60, "requests at the same time")
	rounds := flags.Int("rounds", 40, "at most, each with a connection of its own")
	flags.Parse(arguments)
	t.resolve()
	t.most = 1 // else each request would begin with a connection of its own
	failed, errors, posted := &failures{}, map[string]int{}, 0
	for round := 0; round < *rounds && errors["recv_rststream_REFUSED_STREAM"] == 0; round++ {
		c := newClient(t)
		var group sync.WaitGroup
		for range *count {
			group.Go(func() {
				if err := c.post(context.Background()); err != nil {
					failed.add("%v", err)
				}
			})
		}
		group.Wait()
		posted += *count
		for kind, count := range c.counted() {
			errors[kind] += count
		}
		c.CloseIdleConnections()
	}
	return failed.into(outcome{"errors": errors, "posted": posted})
}

// runCancel gives up some of its requests at random times, at most `share` of them; the others must succeed.
func runCancel(arguments []string) outcome {
	flags := flag.NewFlagSet("cancel", flag.ExitOnError)
	t := targetFlags(flags)
	workers := flags.Int("workers", 20, "requests at the same time")
	count := flags.Int("count", 50, "requests of each worker")
	share := flags.Float64("share", 0.4, "of the requests that are given up")
	seed := flags.Int64("seed", 1, "of the random times")
	flags.Parse(arguments)
	t.resolve()
	c, failed := newClient(t), &failures{}
	if err := c.get(context.Background()); err != nil {
		failed.add("%v", err)
	}
	var cancelled, succeeded atomic.Int64
	var group sync.WaitGroup
	for worker := range *workers {
		group.Go(func() {
			random := rand.New(rand.NewSource(*seed + int64(worker)))
			for range *count {
				if random.Float64() >= *share {
					if err := c.get(context.Background()); err != nil {
						failed.add("not given up: %v", err)
					}
					succeeded.Add(1)
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.Intn(15_000))*time.Microsecond)
				c.giveUp(ctx, random.Intn(4))
				cancel()
				cancelled.Add(1)
			}
		})
	}
	group.Wait()
	if err := c.get(context.Background()); err != nil {
		failed.add("after all: %v", err)
	}
	return failed.into(outcome{
		"cancelled": cancelled.Load(), "succeeded": succeeded.Load(), "connections": c.connections.Load(), "errors": c.counted(),
	})
}

// giveUp does one of several things that `ctx` will end early.
func (c *client) giveUp(ctx context.Context, kind int) {
	var response *http.Response
	var err error
	switch kind {
	case 0:
		response, err = c.request(ctx, "GET", "/api/v1/pods?wait=1000", nil)
	case 1:
		response, err = c.request(ctx, "GET", "/api/v1/pods?watch=1", nil)
	case 2:
		response, err = c.request(ctx, "GET", "/big?bytes=10000000", nil)
	default:
		response, err = c.request(ctx, "POST", "/upload", patternOf(10_000_000))
	}
	if err == nil {
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}
