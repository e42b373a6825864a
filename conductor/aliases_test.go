package conductor_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestAliasesAreBounded: aliases are in every list of the server, so none may be of any length or number.
func TestAliasesAreBounded(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	defer c.Close()
	r := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "i", BlockSize: 16}
	for _, r.Aliases = range [][]string{slices.Repeat([]string{"x"}, 65), {strings.Repeat("x", 257)}} {
		var bad *invalid.FieldError
		if err := c.Register(r, ingest.RegisterOptions{}); !errors.As(err, &bad) || bad.Field != "aliases" ||
			bad.Reason != "out_of_range" {
			t.Errorf("%d aliases: %v", len(r.Aliases), err)
		}
	}
	r.Aliases = []string{strings.Repeat("x", 256)}
	must.Succeed(t, c.Register(r, ingest.RegisterOptions{}))

	// What an answer lists of models is bounded too.
	for i := range 30 {
		r.Instance, r.Model, r.Aliases = strings.Repeat("i", i+2), strings.Repeat("n", i+1), nil
		must.Succeed(t, c.Register(r, ingest.RegisterOptions{}))
	}
	q := match.Query{Model: "nowhere", BlockSize: 16}
	if text := c.For(conductor.Reader{}).Unregistered(&q); strings.Count(text, `"`) != 2+2+2*20 ||
		!strings.HasSuffix(text, " and 11 more") {
		t.Errorf("the models are listed as %s", text)
	}
	q.Tenant = "blue"
	if text := c.For(conductor.Reader{Tenants: []string{"default"}}).Unregistered(&q); text != "" {
		t.Errorf("the text names a model of a tenant that the client may not name: %s", text)
	}
}

// TestAliasesChange asks for an alias while engines with it come, go and change it: the query is about the
// model or finds nothing, and once the changes are over it is about the model.
func TestAliasesChange(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	defer c.Close()
	r := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "stays", BlockSize: 16,
		Aliases: []string{"also-m"}}
	must.Succeed(t, c.Register(r, ingest.RegisterOptions{}))
	rows := func() (n int) {
		q := match.Query{Model: "also-m", BlockSize: 16, Tokens: make([]uint32, 16)}
		must.Report(t, c.For(conductor.Reader{}).Answer(&q, func(a *match.Answer) { n = len(a.Rows) }))
		return n
	}
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			r := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: name, BlockSize: 16}
			for i := range 50 {
				r.Aliases = []string{"also-m", name}[i%2:]
				must.Report(t, c.Register(r, ingest.RegisterOptions{}))
				if rows() < 2 {
					t.Error("the alias means the model no more")
				}
				if i%10 == 9 {
					_, err := c.Unregister(r.Key())
					must.Report(t, err)
				}
			}
		})
	}
	all.Wait()
	if n := rows(); n != 1 {
		t.Errorf("the answer has %d rows", n)
	}
	// The model of another engine takes the name, and gives it back.
	r.Instance, r.Model, r.Aliases = "other", "also-m", nil
	must.Succeed(t, c.Register(r, ingest.RegisterOptions{}))
	q := match.Query{Model: "also-m", BlockSize: 16}
	must.Succeed(t, c.For(conductor.Reader{}).Answer(&q, func(a *match.Answer) {
		if len(a.Rows) != 1 || a.Rows[0].Instance != "other" {
			t.Errorf("the answer is of %v", a.Rows)
		}
	}))
	_, err := c.Unregister(r.Key())
	must.Succeed(t, err)
	if rows() != 1 {
		t.Error("the alias stays with a model that is gone")
	}
}

// TestAdaptersAndAddressChange registers an engine again with other adapters and another address: they count from then on, and the
// source is the same.
func TestAdaptersAndAddressChange(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	defer c.Close()
	r := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "i", BlockSize: 16}
	for _, with := range []struct {
		adapters      []string
		address, role string
	}{{[]string{"sql"}, "http://e:8000", ""}, {[]string{"chat", "code"}, "https://front/e", "prefill"}, {nil, "", "decode"}} {
		r.Adapters, r.Address, r.Role = with.adapters, with.address, with.role
		must.Succeed(t, c.Register(r, ingest.RegisterOptions{}))
		got := conductor.Instances(c.For(conductor.Reader{}))
		if len(got) != 1 || !slices.Equal(got[0].Adapters, with.adapters) || got[0].Address != with.address ||
			got[0].Role != with.role {
			t.Errorf("%+v: %+v", with, got)
		}
		for _, name := range []string{"sql", "chat", "code"} {
			rows := 0
			q := match.Query{Model: name, BlockSize: 16}
			must.Succeed(t, c.For(conductor.Reader{}).Answer(&q, func(a *match.Answer) { rows = len(a.Rows) }))
			if want := slices.Contains(with.adapters, name); (rows == 1) != want {
				t.Errorf("with %q a query for %q has %d rows", with.adapters, name, rows)
			}
		}
		if s := c.Services()[0]; s.Epoch > 1 || len(c.Services()) != 1 {
			t.Errorf("%+v", s)
		}
	}
	for _, bad := range []string{"e:8000", "ftp://e", "http://", "http://u:p@e", "http://e?x=1", strings.Repeat("x", 2000)} {
		r.Address = bad
		var field *invalid.FieldError
		if err := c.Register(r, ingest.RegisterOptions{}); !errors.As(err, &field) || field.Field != "address" {
			t.Errorf("address %q: %v", bad, err)
		}
	}
}
