// The Go proxy of the comparison: net/http/httputil.ReverseProxy, TLS 1.3 and one version of HTTP on both
// sides, connections kept.
//
// Usage: reverseproxy LISTEN UPSTREAM CERTIFICATE KEY AUTHORITY TOKEN http1|http2
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"
)

// buffers lends the buffers that response bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return *b.pool.Get().(*[]byte) }
func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }

func main() {
	if len(os.Args) != 8 {
		log.Fatal("usage: reverseproxy LISTEN UPSTREAM CERTIFICATE KEY AUTHORITY TOKEN http1|http2")
	}
	listen, upstream, certificate, key, authority, token := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	pem, err := os.ReadFile(authority)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatalf("%s has no certificate", authority)
	}
	target, err := url.Parse(fmt.Sprintf("https://127.0.0.1:%s", upstream))
	if err != nil {
		log.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(os.Args[7] != "http2")
	protocols.SetHTTP2(os.Args[7] == "http2")
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13},
		Protocols:           &protocols,
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 4096,
		IdleConnTimeout:     time.Hour,
		DisableCompression:  true,
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = "localhost"
			r.SetXForwarded()
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		Transport:  transport,
		BufferPool: &buffers{sync.Pool{New: func() any { buffer := make([]byte, 32*1024); return &buffer }}},
	}
	server := &http.Server{
		Addr:      "127.0.0.1:" + listen,
		Handler:   proxy,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13},
		Protocols: &protocols,
	}
	log.Fatal(server.ListenAndServeTLS(certificate, key))
}
