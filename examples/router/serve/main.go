// Serve runs the example router in front of engines:
//
//	serve -conductor http://conductor:13333 -model m -block-size 16 engine-a=http://10.0.0.7:8000 engine-b=http://10.0.0.9:8000
//
// Each argument is a worker: the instance as registered with Conductor, and the URL of the engine. An
// engine with data-parallel ranks is one worker for each: engine-a/0=…, engine-a/1=…
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"example.com/conductor/client"
	"example.com/conductor/examples/router"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address for completions")
	conductor := flag.String("conductor", "http://127.0.0.1:13333", "base URL of Conductor")
	model := flag.String("model", "", "model as registered with Conductor")
	blockSize := flag.Int("block-size", 16, "tokens of a block")
	patience := flag.Duration("patience", router.DefaultPatience,
		"how long to wait for an answer of Conductor, before the load alone decides")
	eventsOnly := flag.Bool("events-only", false, "go by what engines have announced, and do not tell Conductor where prompts go")
	flag.Parse()
	if *model == "" {
		log.Fatal("-model is missing: name the model as it is registered with Conductor")
	}
	// A late answer is worth less than a choice by load: nothing is asked twice.
	c, err := client.New(*conductor, client.WithMsgpack(), client.WithRetries(0))
	if err != nil {
		log.Fatal(err)
	}
	r := &router.Router{Conductor: c, Query: client.Query{Model: *model, BlockSize: *blockSize}, Patience: *patience,
		EventsOnly: *eventsOnly}
	for _, text := range flag.Args() {
		w, err := worker(text)
		if err != nil {
			log.Fatal(err)
		}
		r.Workers = append(r.Workers, w)
	}
	if len(r.Workers) == 0 {
		log.Fatal("no worker is given: name at least one, such as engine-a=http://10.0.0.7:8000")
	}
	go r.CheckHealth(context.Background(), time.Second)
	log.Printf("the router listens on %s, in front of %d workers", *listen, len(r.Workers))
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(newServer(r).Serve(netutil.LimitListener(l, maxConnections)))
}

// maxConnections bounds the clients that are connected. Further ones wait until one of them leaves.
const maxConnections = 4096

// newServer returns a server that clients cannot hold up. Answers are streams, which may take as long as they like; the router
// itself bounds bodies.
func newServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
}

// worker reads instance=url and instance/rank=url.
func worker(text string) (w router.Worker, err error) {
	name, base, _ := strings.Cut(text, "=")
	instance, rank, ranked := strings.Cut(name, "/")
	if ranked {
		w.Rank, err = strconv.Atoi(rank)
	}
	if err == nil {
		w.URL, err = url.Parse(base)
	}
	if err != nil || instance == "" || w.URL.Host == "" {
		return w, fmt.Errorf("%q is no worker such as engine-a=http://10.0.0.7:8000 or engine-a/1=http://10.0.0.7:8000", text)
	}
	w.Instance = instance
	return w, nil
}
