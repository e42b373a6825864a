// Serve runs the example router in front of engines:
//
//	serve -conductor http://conductor:13333 -model m -block-size 16 engine-a=http://10.0.0.7:8000 engine-b=http://10.0.0.9:8000
//
// Each argument is a worker: the instance as registered with Conductor, and the URL of the engine. An
// engine with data-parallel ranks is one worker for each: engine-a/0=…, engine-a/1=… Without an argument, the workers are
// the instances of the model that Conductor has an address of when the router starts.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
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
	blockSize := flag.Int("block-size", 0, "tokens of a block; 0 is what the engines of the model are registered with")
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
		all, err := c.Instances(context.Background())
		if err != nil {
			log.Fatalf("no worker is given, and Conductor does not say which there are: %v", err)
		}
		if r.Workers, err = workersOf(all, *model); err != nil {
			log.Fatal(err)
		}
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

// workersOf returns the ranks of the instances of the default tenant that serve a model, an alias or an adapter. Engines that only
// prefill or decode are left out: a router of pairs is another program.
func workersOf(all []client.Instance, model string) (workers []router.Worker, err error) {
	for _, i := range all {
		serves := i.Model == model || slices.Contains(i.Aliases, model) || slices.Contains(i.Adapters, model)
		if i.Tenant != defaultTenant || i.Address == "" || i.Role != "" || !serves {
			continue
		}
		at, err := url.Parse(i.Address)
		if err != nil {
			return nil, fmt.Errorf("instance %q: %w", i.Instance, err)
		}
		for _, rank := range i.Ranks {
			w := router.Worker{Instance: i.Instance, Rank: rank, URL: at}
			if !slices.ContainsFunc(workers, func(o router.Worker) bool { return o.String() == w.String() }) { // it has several block sizes
				workers = append(workers, w)
			}
		}
	}
	if workers == nil {
		return nil, fmt.Errorf("no worker is given, and Conductor knows no instance of the model %q with an address: name at least one, "+
			"such as engine-a=http://10.0.0.7:8000, or register the engines with their address", model)
	}
	return workers, nil
}

// defaultTenant is the tenant that queries without one are about.
const defaultTenant = "default"

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
