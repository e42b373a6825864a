package http_test

import (
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/doctor"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// TestNamesOverSockets lets publishers on real sockets announce salted blocks, images and
// blocks of adapters in the layouts of vLLM's releases, and compares what queries find.
func TestNamesOverSockets(t *testing.T) {
	c := conductor.New(conductor.Options{
		HashSeed: 1337, MaxSources: 16, MaxOrphans: 16, GhostBytes: 1 << 20, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: zmq.Transport{}},
	})
	t.Cleanup(c.Close)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 10, Version: "test"}, Gatherer: prometheus.NewRegistry(),
		Log: zerolog.Nop(),
	}
	router := admin.New(c, opts)
	conductorhttp.Mount(router, c, opts.Dialect)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)

	type list = []any
	var (
		salt  = strings.Repeat("5a", 32)
		image = strings.Repeat("1e", 32)
		none  list
	)
	// engine registers a publisher and returns what sends its events, one after another.
	engine := func(name string) func(events ...any) {
		p := newPeer(t)
		body, err := post(server.URL+"/register", map[string]any{
			"endpoint": p.endpoint, "type": "vLLM", "modelname": "m", "instance_id": name, "block_size": 2, "dp_rank": 0,
		})
		if err != nil || !strings.Contains(string(body), "registered successfully") {
			t.Fatalf("%s: %s %v", name, body, err)
		}
		return func(events ...any) {
			t.Helper()
			for _, e := range events {
				p.publish(e)
			}
			waitFor(t, name+" is applied", func() bool { return row(t, server.URL, name).LastSeq == p.seq })
		}
	}
	// finds compares longest_matched and CPU of an engine's row.
	finds := func(name string, tokens []int, lora, salt string, longest, host int) {
		t.Helper()
		body, err := post(server.URL+"/query", map[string]any{
			"model": "m", "block_size": 2, "token_ids": tokens, "lora_name": lora, "cache_salt": salt, "instance_id": name,
		})
		var answer struct {
			Default map[string]struct {
				Longest int `json:"longest_matched"`
				CPU     int
			}
		}
		if err != nil || json.Unmarshal(body, &answer) != nil {
			t.Fatalf("%s %v", body, err)
		}
		if got := answer.Default[name]; got.Longest != longest || got.CPU != host {
			t.Errorf("%s, adapter %q, salt %q: %d tokens, %d on the host; want %d and %d", name, lora, salt, got.Longest, got.CPU, longest,
				host)
		}
	}
	prompt := []int{1, 2, 3, 4}
	array := func(n int, hashes list, tokens []int, keys list) list {
		return list{"BlockStored", hashes, nil, tokens, 2, nil, "GPU", nil, keys, 0, "full_attention", nil}[:n]
	}
	stored := func(hashes list, parent any, tokens []int, medium string, lora any, keys list) map[string]any {
		e := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
			"block_size": 2, "lora_id": nil, "medium": medium, "lora_name": lora, "group_idx": 0}
		if keys != nil {
			e["extra_keys"] = keys
		}
		return e
	}
	removed := func(hashes list) map[string]any {
		return map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
	}

	// A salt of 64 hex digits.
	for _, n := range []int{9, 10, 12} {
		name := fmt.Sprintf("array%d", n)
		engine(name)(array(n, list{1, 2}, prompt, list{list{salt}, nil}))
		finds(name, prompt, "", salt, 4, 0)
		finds(name, prompt, "", "", 0, 0)
		want := 0
		if n == 9 {
			want = 1
		}
		if got := row(t, server.URL, name).DroppedBy["ambiguous_extra_key"]; got != want {
			t.Errorf("%s: %d ambiguous events, want %d", name, got, want)
		}
	}
	engine("map")(stored(list{1, 2}, nil, prompt, "GPU", nil, list{list{salt}, nil}))
	finds("map", prompt, "", salt, 4, 0)
	finds("map", prompt, "", "", 0, 0)
	finds("map", prompt, "", image, 0, 0)

	// Images as vLLM 0.17 and 0.18 publish them.
	engine("images")(array(9, list{1, 2}, prompt, list{list{image}, list{image}}),
		array(9, list{3, 4}, []int{5, 6, 7, 8}, list{nil, list{image}}))
	finds("images", prompt, "", "", 0, 0)
	finds("images", prompt, "", image, 0, 0)
	finds("images", []int{5, 6, 7, 8}, "", "", 2, 0)

	// The connector to a Mooncake Store leaves the adapter out.
	engine("store")(stored(list{1, 2}, nil, prompt, "GPU", "sql", none), stored(list{1}, nil, prompt[:2], "cpu", nil, none),
		stored(list{2}, 1, prompt[2:], "cpu", nil, none))
	finds("store", prompt, "sql", "", 4, 4)
	finds("store", prompt, "", "", 0, 0)

	// Device copies that leave before the host's arrive.
	engine("late")(
		stored(list{101, 102}, nil, prompt, "GPU", "sql", list{list{"sql", salt}, list{"sql"}}), removed(list{101, 102}),
		stored(list{101, 102}, nil, prompt, "CPU", nil, none),
		stored(list{11, 12}, nil, prompt, "GPU", nil, list{list{salt}, nil}), removed(list{11, 12}),
		stored(list{11}, nil, nil, "CPU", nil, none), stored(list{12}, nil, nil, "CPU", nil, none))
	finds("late", prompt, "sql", salt, 4, 4)
	finds("late", prompt, "", salt, 4, 4)
	finds("late", prompt, "sql", "", 0, 0)
	finds("late", prompt, "", "", 0, 0)

	// vLLM 0.9 and 0.11 number adapters.
	engine("numbers")(list{"BlockStored", list{31, 32}, nil, prompt, 2, 3}, list{"BlockStored", list{33}, nil, prompt[:2], 2, nil})
	finds("numbers", prompt, "", "", 2, 0)
	finds("numbers", prompt, "lora_id:3@numbers|default|0", "", 4, 0)
	if got := row(t, server.URL, "numbers").Findings; len(got) != 1 || got[0].Code != doctor.FindingAdapter {
		t.Errorf("findings %v", got)
	}
}

// sourceRow is what a test reads of a row of /services.
type sourceRow struct {
	InstanceID string
	LastSeq    uint64
	DroppedBy  map[string]int
	Findings   []struct{ Code string }
}

// row returns the row of an instance in /services.
func row(t *testing.T, url, instance string) sourceRow {
	t.Helper()
	resp, err := nethttp.Get(url + "/services")
	must.Succeed(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	var answer struct{ Services []sourceRow }
	if err != nil || json.Unmarshal(raw, &answer) != nil {
		t.Fatalf("%s %v", raw, err)
	}
	for _, s := range answer.Services {
		if s.InstanceID == instance {
			return s
		}
	}
	t.Fatalf("no row of %s: %s", instance, raw)
	return sourceRow{}
}
