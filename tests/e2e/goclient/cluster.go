package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// cluster answers as a kube-apiserver would, as far as connections and streams go; its objects mean nothing.
type cluster struct {
	goawayChance float64
	requests     atomic.Int64
	lists        atomic.Int64 // of besideWatches
	inFlight     atomic.Int64
	watches      atomic.Int64
	mutex        sync.Mutex
	open         map[net.Conn]bool // true: with streams of HTTP/2
	most         int               // connections at the same time
	posted       map[string]int    // how often each X-Id came
	events       [][]byte
	changed      chan struct{} // closed with the next event
	ended        chan struct{} // closed to end all watches
}

func runCluster(arguments []string) outcome {
	flags := flag.NewFlagSet("cluster", flag.ExitOnError)
	certificate := flags.String("certificate", "", "PEM file")
	key := flags.String("key", "", "PEM file")
	http1 := flags.Bool("http1", false, "HTTP/1.1 instead of HTTP/2")
	streams := flags.Int("streams", 250, "MAX_CONCURRENT_STREAMS")
	c := &cluster{
		open: map[net.Conn]bool{}, posted: map[string]int{}, changed: make(chan struct{}), ended: make(chan struct{}),
	}
	flags.Float64Var(&c.goawayChance, "goaway-chance", 0, "share of requests that are answered with a GOAWAY beside")
	flags.Parse(arguments)
	var protocols http.Protocols
	protocols.SetHTTP1(true) // for upgrades, and for a proxy that wants no other
	protocols.SetHTTP2(!*http1)
	server := &http.Server{
		Handler: c, ConnState: c.connection, Protocols: &protocols, ErrorLog: log.New(io.Discard, "", 0),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: *streams},
		ConnContext: func(ctx context.Context, connection net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, connection)
		},
	}
	listener, control := listen(), listen()
	go func() { log.Fatal(server.ServeTLS(listener, *certificate, *key)) }()
	go func() { log.Fatal(http.Serve(control, http.HandlerFunc(c.control))) }()
	show(outcome{"port": port(listener), "control": port(control)})
	<-stdinEnds()
	return c.stats()
}

// besideWatches is the namespace of the lists that are asked for on connections that have watches.
const besideWatches = "watched"

type connectionKey struct{} // of a request's context: its net.Conn

func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func port(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

func (c *cluster) connection(connection net.Conn, state http.ConnState) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch state {
	case http.StateNew:
		c.open[connection] = false
		c.most = max(c.most, len(c.open))
	case http.StateClosed, http.StateHijacked:
		delete(c.open, connection)
	}
}

func (c *cluster) stats() outcome {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	twice, http2 := 0, 0
	for _, withStreams := range c.open {
		if withStreams {
			http2++
		}
	}
	for _, count := range c.posted {
		if count > 1 {
			twice++
		}
	}
	return outcome{
		"connections": len(c.open), "http2": http2, "most": c.most, "requests": c.requests.Load(), "lists": c.lists.Load(), "inFlight": c.inFlight.Load(),
		"watches": c.watches.Load(), "posted": len(c.posted), "twice": twice, "events": len(c.events),
	}
}

// control is the test's side: GET /stats, POST /events?count=N, POST /end.
func (c *cluster) control(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/events":
		c.emit(number(r, "count", 1))
	case "/end":
		c.mutex.Lock()
		close(c.ended)
		c.ended = make(chan struct{})
		c.mutex.Unlock()
	}
	json.NewEncoder(w).Encode(c.stats())
}

func (c *cluster) emit(count int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for range count {
		c.events = append(c.events, event(len(c.events)+1))
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// event is one line of a watch; version counts from 1.
func event(version int) []byte {
	return fmt.Appendf(nil, `{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"demo",`+
		`"resourceVersion":"%d","labels":{"app":"web","pod-template-hash":"6d4cf56db6"}},"status":{"phase":"Running"}}}`+"\n", version)
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests.Add(1)
	if r.URL.Path == "/api/v1/namespaces/"+besideWatches+"/pods" {
		c.lists.Add(1)
	}
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	if r.ProtoMajor == 2 {
		c.mutex.Lock()
		c.open[r.Context().Value(connectionKey{}).(net.Conn)] = true
		c.mutex.Unlock()
	}
	if c.goawayChance > 0 && rand.Float64() < c.goawayChance {
		w.Header().Set("Connection", "close") // over HTTP/2 this is GOAWAY: kube-apiserver's --goaway-chance is the same
	}
	w.Header().Set("Content-Type", "application/json")
	switch query := r.URL.Query(); {
	case r.Header.Get("Upgrade") != "":
		c.echo(w)
	case query.Has("watch"):
		c.watch(w, r)
	case query.Has("bytes"):
		download(w, number(r, "bytes", 0))
	case r.URL.Path == "/upload":
		upload(w, r)
	case query.Has("wait"):
		select {
		case <-time.After(time.Duration(number(r, "wait", 0)) * time.Millisecond):
		case <-r.Context().Done():
		}
		io.WriteString(w, "{}")
	case r.Method == http.MethodPost:
		c.post(w, r)
	default:
		io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}
}

func number(r *http.Request, name string, otherwise int) int {
	if found, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil {
		return found
	}
	return otherwise
}

// watch sends all events after `resourceVersion`, until the client leaves or the test ends it.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	c.watches.Add(1)
	defer c.watches.Add(-1)
	flusher := w.(http.Flusher)
	flusher.Flush()
	c.mutex.Lock()
	ended := c.ended
	c.mutex.Unlock()
	for sent := number(r, "resourceVersion", 0); ; {
		c.mutex.Lock()
		more, changed := c.events[min(sent, len(c.events)):], c.changed
		c.mutex.Unlock()
		for _, line := range more {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
		if len(more) > 0 {
			flusher.Flush()
			sent += len(more)
		}
		select {
		case <-changed:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// echo is what exec is here: all that comes goes back, until the client ends it.
func (c *cluster) echo(w http.ResponseWriter) {
	connection, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	io.Copy(connection, buffered)
}

func (c *cluster) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	if review := []byte(`"SelfSubjectAccessReview"`); bytes.Contains(body, review) {
		var sent map[string]any
		json.Unmarshal(body, &sent)
		sent["status"] = map[string]any{"allowed": true}
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(sent)
		return
	}
	if id := r.Header.Get("X-Id"); id != "" {
		c.mutex.Lock()
		c.posted[id]++
		c.mutex.Unlock()
	}
	w.WriteHeader(http.StatusCreated)
	w.Write(body)
}

// pattern is what bodies repeat; 251 is prime, so that a block that is lost or doubled is noticed.
var pattern = func() []byte {
	block := make([]byte, 251*256)
	for index := range block {
		block[index] = byte(index % 251)
	}
	return block
}()

// patternOf reads `size` bytes of the pattern.
func patternOf(size int) io.Reader { return &repeated{left: size} }

type repeated struct{ left, at int }

func (r *repeated) Read(buffer []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	count := copy(buffer[:min(len(buffer), r.left)], pattern[r.at:])
	r.left -= count
	r.at = (r.at + count) % len(pattern)
	return count, nil
}

func download(w http.ResponseWriter, size int) {
	w.Header().Set("Content-Length", strconv.Itoa(size))
	io.CopyBuffer(struct{ io.Writer }{w}, patternOf(size), make([]byte, 64<<10))
}

// upload tells what came, in its body and in trailers.
func upload(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Bytes")
	sum := crc32.NewIEEE()
	count, err := io.Copy(sum, r.Body)
	if err != nil {
		return
	}
	fmt.Fprintf(w, `{"bytes":%d,"sum":%d,"trailer":%q,"length":%d,"expect":%q}`,
		count, sum.Sum32(), r.Trailer.Get("X-Sum"), r.ContentLength, r.Header.Get("Expect"))
	w.Header().Set("X-Bytes", strconv.FormatInt(count, 10))
}
