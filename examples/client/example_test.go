// Package client_test is an example of the Go client. It stands here and not next to the client, because it
// starts a server, and programs that link the client would need to know all modules of the server.
//
//	go test ./examples/client -v
package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/client"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
)

// serve starts a server in this process. Yours runs elsewhere: go run ./cmd/conductor serve.
func serve() (url string, stop func()) {
	core := conductor.New(conductor.Options{ExpectedBytes: 1 << 20, Log: zerolog.Nop()})
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 17}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	routes := admin.New(core, opts)
	conductorhttp.Mount(routes.Group("/conductor/v1"), core, opts.Dialect)
	server := httptest.NewServer(routes)
	return server.URL, func() {
		server.Close()
		core.Close()
	}
}

// Example registers an engine, tells where a prompt goes, and asks who has the beginning of another one.
// The engine publishes no events, so the example needs no publisher: what routers report counts as cached.
// Of an engine with events, Endpoint is where it publishes, and the answer has what it announced.
func Example() {
	url, stop := serve()
	defer stop()

	conductor, err := client.New(url)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = conductor.Register(ctx, client.Registration{
		Instance: "llama-1", Type: "Standard", Model: "llama", BlockSize: 16, Address: "http://10.0.0.7:8000",
		Events: "none", CapacityBlocks: 1000, Approximate: "count",
	})
	if err != nil {
		panic(err)
	}

	prompt := make([]uint32, 100) // token ids, as the engine's tokenizer gives them
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	query := client.Query{Model: "llama", Tokens: prompt} // the block size is that of the engines
	answer, err := conductor.Candidates(ctx, query)
	if err != nil {
		panic(err)
	}
	to := answer.Rows[0] // there is one; a router compares what they have, and their load
	fmt.Printf("the prompt goes to %s at %s, which has %d of its tokens\n", to.Instance, to.Address, to.Longest)
	err = conductor.Routed(ctx, client.Routed{AnswerID: answer.ID, Target: to.Instance, Rank: client.AnyRank})
	if err != nil {
		panic(err)
	}

	query.Tokens = append(prompt[:50:50], 7, 8, 9) // another question after the same beginning
	if answer, err = conductor.Candidates(ctx, query); err != nil {
		panic(err)
	}
	for _, row := range answer.Rows {
		fmt.Printf("%s has %d of %d tokens\n", row.Instance, row.Longest, len(query.Tokens))
	}

	query.Model = "lama"
	_, err = conductor.Candidates(ctx, query)
	var refused *client.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Status, refused.Reason, refused.Known)
	}
	// Output:
	// the prompt goes to llama-1 at http://10.0.0.7:8000, which has 0 of its tokens
	// llama-1 has 48 of 53 tokens
	// 404 unknown_model [llama]
}
