// Clients and a cluster of Go's net/http for mcproxy's end-to-end tests, for client-go and kube-apiserver are built on it.
//
// Usage: goclient COMMAND [flags]; one line of JSON comes out at the end (and `ready` before it where somebody waits).
// Only the standard library is used, so that it builds offline.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is what a command prints at its end.
type outcome map[string]any

var commands = map[string]func(arguments []string) outcome{
	"cluster":  runCluster,
	"download": runDownload,
	"upload":   runUpload,
	"watches":  runWatches,
	"load":     runLoad,
	"burst":    runBurst,
	"cancel":   runCancel,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		log.Fatal("usage: goclient cluster | download | upload | watches | load | burst | cancel [flags]")
	}
	show(commands[os.Args[1]](os.Args[2:]))
}

func show(found outcome) {
	line, err := json.Marshal(found)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}

// target is where a client's requests go, and how.
type target struct {
	url, authority, token string
	http1                 bool
	http2                 http.HTTP2Config
	most                  int // connections of a client at the same time; 0: as many as it wants
	roots                 *x509.CertPool
}

// targetFlags adds the flags that all clients have; `resolve` reads the CA once they are parsed.
func targetFlags(flags *flag.FlagSet) *target {
	t := &target{}
	flags.StringVar(&t.url, "url", "", "https://127.0.0.1:PORT")
	flags.StringVar(&t.authority, "ca", "", "file of the CA")
	flags.StringVar(&t.token, "token", "go-test-token", "bearer token")
	flags.BoolVar(&t.http1, "http1", false, "HTTP/1.1 instead of HTTP/2")
	flags.IntVar(&t.http2.MaxReceiveBufferPerStream, "stream-window", 0, "bytes; 0: Go's default of 4 MiB")
	flags.IntVar(&t.http2.MaxReceiveBufferPerConnection, "connection-window", 0, "bytes; 0: Go's default of 1 GiB")
	flags.DurationVar(&t.http2.SendPingTimeout, "ping-after", 30*time.Second, "silence after which PING is sent; client-go's default")
	return t
}

func (t *target) resolve() {
	pem, err := os.ReadFile(t.authority)
	if err != nil {
		log.Fatal(err)
	}
	t.roots = x509.NewCertPool()
	if !t.roots.AppendCertsFromPEM(pem) {
		log.Fatalf("%s has no certificate", t.authority)
	}
}

// client is one http.Client with connections of its own, which are counted.
type client struct {
	*http.Client
	target      *target
	connections atomic.Int64
	resumed     atomic.Int64 // watches
	refused     atomic.Int64 // watches that were asked for again and did not begin
	mutex       sync.Mutex
	errors      map[string]int // by the names of http.HTTP2Config.CountError
}

func newClient(t *target) *client {
	c := &client{target: t, errors: map[string]int{}}
	var protocols http.Protocols
	protocols.SetHTTP1(t.http1)
	protocols.SetHTTP2(!t.http1)
	settings := t.http2
	settings.CountError = func(kind string) {
		c.mutex.Lock()
		c.errors[kind]++
		c.mutex.Unlock()
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	c.Client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: t.roots},
		Protocols:             &protocols,
		HTTP2:                 &settings,
		ExpectContinueTimeout: 20 * time.Second, // so long that a body without 100 would be noticed
		DisableCompression:    true,
		MaxIdleConnsPerHost:   1000,
		MaxConnsPerHost:       t.most,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c.connections.Add(1)
			return dialer.DialContext(ctx, network, address)
		},
	}}
	return c
}

func (c *client) counted() map[string]int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	counted := map[string]int{}
	for kind, count := range c.errors {
		counted[kind] = count
	}
	return counted
}

// failures keeps the first of many texts and counts all.
type failures struct {
	mutex sync.Mutex
	count int
	texts []string
}

func (f *failures) add(format string, values ...any) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.count++
	if len(f.texts) < 20 {
		f.texts = append(f.texts, fmt.Sprintf(format, values...))
	}
}

func (f *failures) into(found outcome) outcome {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	found["failed"], found["failures"] = f.count, append([]string{}, f.texts...)
	return found
}

// stdinEnds is closed when the one who started the program closes its standard input.
func stdinEnds() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		buffer := make([]byte, 64)
		for {
			if _, err := os.Stdin.Read(buffer); err != nil {
				close(ended)
				return
			}
		}
	}()
	return ended
}
