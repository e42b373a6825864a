package engines_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/request"
)

// A burst is two requests of one prompt to one engine.
type burst struct {
	engine *vllmEngine
	prompt []uint32
	before int           // longest_matched before the first
	first  chan struct{} // closed when the first is answered
	found  int           // tokens of the first that were in the cache
}

// A meeting is how the second request of a burst meets the first, with what came of it.
type meeting struct {
	name string
	busy bool // the engine computes another prompt when the first is sent
	wait func(*vllmFleet, *burst)

	bursts, equal, overtaken, long, short int
	matched, expected, found, tokens      int // of the second requests
}

// bursts sends pairs of equal prompts, and compares what the server expects when the second is sent
// with what the engine then finds.
func (f *vllmFleet) bursts(n int) {
	f.t.Helper()
	meetings := []*meeting{
		{name: "sent at once", wait: func(*vllmFleet, *burst) {}},
		{name: "both queued", busy: true, wait: func(*vllmFleet, *burst) {}},
		{name: "first computing", wait: (*vllmFleet).awaitChunk},
		{name: "first answered", wait: func(_ *vllmFleet, b *burst) { <-b.first }},
	}
	reported := 0
	for i := range n {
		m := meetings[i%len(meetings)]
		p := f.prompt(2000, 3000)
		b := &burst{prompt: p, engine: f.choose(p)}
		f.settle(b.engine)
		b.before = f.row(b.engine, p, "").Longest
		other := make(chan struct{})
		if m.busy {
			other = f.send(b.engine, f.fresh(3000), new(int))
		} else {
			close(other)
		}
		f.routed(b.engine, p, fmt.Sprintf("%d-first", i))
		b.first = f.send(b.engine, p, &b.found)
		m.wait(f, b)
		row := f.row(b.engine, p, "?expected=1")
		f.routed(b.engine, p, fmt.Sprintf("%d-second", i))
		found, err := b.engine.complete(p)
		must.Succeed(f.t, err)
		<-b.first
		<-other
		f.judge(m, b, row, found)

		f.settle(b.engine)
		whole := len(p) / vllmBlock * vllmBlock
		reported += whole - b.before
		if got := f.row(b.engine, p, "").Longest; got != whole {
			f.t.Errorf("burst %d: longest_matched is %d after the events, want %d", i, got, whole)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SECOND REQUEST\tBURSTS\tEQUAL\tOVERTAKEN\tTOO LONG\tTOO SHORT\tMATCHED\tEXPECTED\tFOUND\tTOKENS")
	for _, m := range meetings {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", m.name, m.bursts, m.equal, m.overtaken, m.long, m.short, m.matched,
			m.expected, m.found, m.tokens)
	}
	w.Flush()
	f.ended(reported)
}

// judge compares the row of the second request of a burst with what the engine found.
func (f *vllmFleet) judge(m *meeting, b *burst, row vllmRow, found int) {
	f.t.Helper()
	rank, ok := row.Ranks["0"]
	if !ok || rank.Expected == nil || row.Expected == nil || *row.Expected != *rank.Expected || *row.Expected < row.Longest {
		f.t.Fatalf("%s: the row of a query with expected is %+v", m.name, row)
	}
	length := len(b.prompt)
	expected := clip(*rank.Expected, length)
	m.bursts++
	m.matched, m.expected, m.found, m.tokens = m.matched+clip(row.Longest, length), m.expected+expected, m.found+found, m.tokens+length
	switch {
	case found == expected:
		m.equal++
		return
	case found < expected && b.found == expected && b.before < expected:
		// The engine took the second request from its socket before the first, which found what was
		// expected of the second.
		m.overtaken++
		return
	case found < expected:
		m.long++
	default:
		m.short++
	}
	text := fmt.Sprintf("%s, %d tokens: expected %d, the engine found %d; longest_matched was %d, the first request found %d", m.name,
		length, expected, found, row.Longest, b.found)
	if os.Getenv("ENGINES_VLLM_ARGS") == "" {
		f.t.Error(text)
	} else {
		fmt.Println(text)
	}
}

// awaitChunk waits until the engine has announced blocks that the first request computed, or answered it.
func (f *vllmFleet) awaitChunk(b *burst) {
	for f.row(b.engine, b.prompt, "").Longest <= b.before {
		select {
		case <-b.first:
			return
		default:
		}
	}
}

// send sends a prompt from a goroutine of its own, and closes the channel when the answer is there.
func (f *vllmFleet) send(e *vllmEngine, prompt []uint32, found *int) chan struct{} {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		var err error
		*found, err = e.complete(prompt)
		must.Report(f.t, err)
	}()
	return answered
}

// routed tells the server to which engine a prompt goes.
func (f *vllmFleet) routed(e *vllmEngine, prompt []uint32, id string) {
	f.t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": vllmModel, "block_size": vllmBlock, "token_ids": prompt, "instance_id": e.instance, "dp_rank": 0, "request_id": id,
	})
	must.Succeed(f.t, err)
	status, answer, err := request.Do(f.t.Context(), http.DefaultClient, http.MethodPost, f.server.url+"/routed", body)
	must.Succeed(f.t, err)
	if status != http.StatusNoContent {
		f.t.Fatalf("/routed: status %d: %s", status, answer)
	}
}

// ended checks that the events confirmed all that was reported: at least that many tokens.
func (f *vllmFleet) ended(reported int) {
	f.t.Helper()
	resp, err := http.Get(f.server.url + "/metrics")
	must.Succeed(f.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.Succeed(f.t, err)
	ended := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name, ok := strings.CutPrefix(name, "conductor_expected_"); ok {
			n, err := strconv.ParseFloat(value, 64)
			must.Succeed(f.t, err)
			ended[name] = int(n)
		}
	}
	read := func(name string) int {
		n, ok := ended[name]
		if !ok {
			f.t.Errorf("there is no metric conductor_expected_%s", name)
		}
		return n
	}
	confirmed, pending := read(`tokens_total{result="confirmed"}`), read("pending_tokens")
	expired, dropped := read(`tokens_total{result="expired"}`), read(`tokens_total{result="dropped"}`)
	fmt.Printf("tokens that were expected: %d confirmed by events, %d expired, %d dropped, %d pending\n", confirmed, expired, dropped,
		pending)
	if confirmed < reported || expired+dropped+pending != 0 {
		f.t.Errorf("of %d tokens that were expected %d are confirmed, %d expired, %d dropped and %d pending", reported, confirmed, expired,
			dropped, pending)
	}
}
