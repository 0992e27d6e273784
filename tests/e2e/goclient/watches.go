package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// runWatches opens watches of many clients, says `ready`, and follows them until each has had all events.
//
// Lists are asked for meanwhile on the clients' connections. With -stay it goes on until standard input ends.
func runWatches(arguments []string) outcome {
	flags := flag.NewFlagSet("watches", flag.ExitOnError)
	t := targetFlags(flags)
	clients := flags.Int("clients", 20, "each with connections of its own")
	each := flags.Int("each", 15, "watches of each client")
	events := flags.Int("events", 10, "that every watch is to get")
	lists := flags.Bool("lists", false, "one client's lists beside its watches, without a pause")
	resume := flags.Bool("resume", false, "a watch that ends is asked for again from its last version, as informers do")
	stay := flags.Bool("stay", false, "keep the watches until standard input ends")
	patience := flags.Duration("patience", time.Minute, "for all events")
	flags.Parse(arguments)
	t.resolve()
	failed, all := &failures{}, []*client{}
	var ready, opened sync.WaitGroup
	var seen atomic.Int64
	finished := make(chan bool, *clients**each)
	ctx, cancel := context.WithCancel(context.Background())
	places := make(chan bool, 100) // watches that are opened at the same time
	for range *clients {
		c := newClient(t)
		all = append(all, c)
		if err := c.get(ctx); err != nil { // else the first watches would each begin with a connection of its own
			failed.add("%v", err)
		}
		for number := range *each {
			ready.Add(1)
			opened.Go(func() {
				places <- true
				complete := c.watch(ctx, number, *events, *resume, failed, &seen, func() { <-places; ready.Done() })
				finished <- complete
			})
		}
	}
	ready.Wait()
	ended := stdinEnds()
	show(failed.into(outcome{"ready": true}))
	done := make(chan struct{})
	var listing sync.WaitGroup
	delays := []float64{}
	if *lists {
		listing.Go(func() { delays = listUntil(done, all[0], failed) })
	}
	complete, late := 0, time.After(*patience)
wait:
	for complete < *clients**each {
		select {
		case whole := <-finished:
			if !whole {
				break wait // the failure is noted
			}
			complete++
		case <-late:
			failed.add("%d of %d watches are complete", complete, *clients**each)
			break wait
		case <-ended:
			break wait
		}
	}
	close(done)
	listing.Wait()
	if *stay {
		show(outcome{"complete": complete})
		<-ended
	}
	connections, resumed, refused, errors := int64(0), int64(0), int64(0), map[string]int{}
	for _, c := range all {
		resumed += c.resumed.Load()
		refused += c.refused.Load()
		connections += c.connections.Load()
		for kind, count := range c.counted() {
			errors[kind] += count
		}
	}
	cancel()
	sort.Float64s(delays)
	found := outcome{"complete": complete, "events": seen.Load(), "connections": connections, "errors": errors, "lists": len(delays), "resumed": resumed, "refused": refused}
	if len(delays) > 0 {
		found["median"], found["longest"] = delays[len(delays)/2], delays[len(delays)-1]
	}
	return failed.into(found)
}

// watch follows one watch; the versions must be 1, 2, 3, and so on. It goes on after `events` of them.
//
// `began` is called when the first response is there.
func (c *client) watch(
	ctx context.Context, number, events int, resume bool, failed *failures, seen *atomic.Int64, began func(),
) bool {
	response, err := c.openWatch(ctx, number, 0)
	began()
	if err != nil {
		failed.add("%v", err)
		return false
	}
	// A goroutine for each watch reads on, so that a test sees what ends one that is complete.
	complete := make(chan bool, 1)
	go func() {
		version := 0
		for {
			version, err = followWatch(response, version, func(version int) {
				seen.Add(1)
				if version == events {
					complete <- true
				}
			})
			for err == io.EOF && resume && ctx.Err() == nil {
				c.resumed.Add(1)
				if response, err = c.openWatch(ctx, number, version); err != nil {
					c.refused.Add(1)
					time.Sleep(20 * time.Millisecond)
					err = io.EOF
					continue
				}
			}
			if err != nil {
				if ctx.Err() == nil {
					failed.add("after event %d: %v", version, err)
					complete <- false
				}
				return
			}
		}
	}()
	if events == 0 {
		return true
	}
	return <-complete
}

func (c *client) openWatch(ctx context.Context, number, version int) (*http.Response, error) {
	path := fmt.Sprintf(
		"/api/v1/namespaces/demo-%d/pods?watch=1&resourceVersion=%d&allowWatchBookmarks=true", number, version)
	response, err := c.request(ctx, "GET", path, nil)
	if err == nil && response.StatusCode != 200 {
		response.Body.Close()
		err = fmt.Errorf("status %d", response.StatusCode)
	}
	return response, err
}

// followWatch calls `event` with each version after `version`; it returns the last one and what ended the watch.
//
// io.EOF means that it ended in an orderly way, between two events.
func followWatch(response *http.Response, version int, seen func(version int)) (int, error) {
	defer response.Body.Close()
	lines := bufio.NewReaderSize(response.Body, 512)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF && len(line) > 0 {
			return version, fmt.Errorf("ended inside an event: %s", line)
		}
		if err != nil {
			return version, err
		}
		if !bytes.Equal(line, event(version+1)) {
			return version, fmt.Errorf("instead of event %d: %s", version+1, line)
		}
		version++
		seen(version)
	}
}

// listUntil lists without a pause and returns the seconds that each took.
func listUntil(done <-chan struct{}, c *client, failed *failures) []float64 {
	delays := []float64{}
	for {
		began := time.Now()
		if err := c.list(context.Background(), besideWatches); err != nil {
			failed.add("list: %v", err)
		}
		delays = append(delays, time.Since(began).Seconds())
		select {
		case <-done:
			return delays
		default:
		}
	}
}
