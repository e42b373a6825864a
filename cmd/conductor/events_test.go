package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"

	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/engine"
)

const journalType = "application/vnd.conductor.journal"

// historian asks a server for the events of its sources, and compares answers with openapi.yaml.
type historian struct {
	*testing.T
	server *process
	doc    *apitest.Document
}

func newHistorian(t *testing.T, p *process) *historian {
	t.Helper()
	openapi3filter.RegisterBodyDecoder(journalType, openapi3filter.FileBodyDecoder)
	return &historian{t, p, apitest.Load(t)}
}

// eventsAnswer is an answer of /admin/events.
type eventsAnswer struct {
	Reason, Field, Snapshot string
	Epoch                   uint64
	First, Last, Next       *uint64
	Batches                 []struct {
		Seq, Epoch uint64
		Time       time.Time
		Idle       bool
		Payload    []byte
	}
}

// text prints an answer: bounds, numbers of batches, and where the rest begins.
func (e eventsAnswer) text() string {
	number := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	s := fmt.Sprintf("%d: %s to %s:", e.Epoch, number(e.First), number(e.Last))
	for _, b := range e.Batches {
		s += fmt.Sprintf(" %d", b.Seq)
		if b.Idle {
			s += " idle"
		}
	}
	if e.Reason != "" {
		s += strings.TrimRight(" "+e.Reason+" "+e.Field+" "+e.Snapshot, " ")
	}
	if e.Next != nil {
		s += " next " + number(e.Next)
	}
	return s
}

// send makes a request with parameters in addition to the source.
func (a *historian) send(source, query, accept string, status int) *httptest.ResponseRecorder {
	a.Helper()
	req, err := http.NewRequest(http.MethodGet, a.server.url+"/admin/events?source="+url.QueryEscape(source)+query, nil)
	must.Succeed(a, err)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(a, err)
	defer resp.Body.Close()
	rec := httptest.NewRecorder()
	for name, values := range resp.Header {
		rec.Header()[name] = values
	}
	rec.WriteHeader(resp.StatusCode)
	_, err = io.Copy(rec, resp.Body)
	must.Succeed(a, err)
	if rec.Code != status {
		a.Errorf("%s%s: status %d, want %d: %s", source, query, rec.Code, status, rec.Body)
	}
	described, err := http.NewRequest(http.MethodGet, req.URL.RequestURI(), nil)
	must.Succeed(a, err)
	a.doc.CheckAnswer(a.T, described, rec)
	return rec
}

func (a *historian) ask(source, query string, status int) (answer eventsAnswer) {
	a.Helper()
	decode(a.T, a.send(source, query, "", status).Body.String(), &answer)
	return answer
}

// TestEventsOverHTTP publishes over sockets and reads the same payloads back over HTTP, in JSON
// and as a segment that conductor replay takes.
func TestEventsOverHTTP(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	p := serveProcess(t, fmt.Sprintf("journal: {dir: %q, ring_bytes: 256KiB}\n", dir), "127.0.0.1:0=dynamo")
	dialect := *p
	dialect.url += "/conductor/v1"
	engines := recordEngine(t, &dialect, "a", 1<<32)
	recordEngine(t, &dialect, "b", 1<<33)
	for i := range 4 {
		engines.publish(engine.Stored, 2*i, 2*i+2)
	}
	for range 3 {
		_, err := engines.Publish(nil)
		must.Succeed(t, err)
	}
	engines.publish(engine.Removed, 7, 8)
	engines.settle(&dialect, "a")
	awaitBatches(t, dir, 5)

	a := newHistorian(t, p)
	f := func(source, query string, status int, want string) {
		t.Helper()
		if got := a.ask(source, query, status).text(); got != want {
			t.Errorf("%s%s: %q, want %q", source, query, got, want)
		}
	}
	const source = "a|default|0"
	f(source, "", 200, "1: 0 to 7: 0 1 2 3 6 idle 7")
	f(source, "&from=2&to=4", 200, "1: 0 to 7: 2 3 4 idle")
	f(source, "&from=1&limit=2&epoch=1", 200, "1: 0 to 7: 1 2 next 3")
	f(source, "&from=7&to=7", 200, "1: 0 to 7: 7")
	f(source, "&from=8", 416, "1: 0 to 7: too_new from")
	f(source, "&from=0&epoch=2", 416, "1: 0 to 7: too_new epoch")
	f("b|default|0", "", 200, "1: - to -:")
	f("b|default|0", "&from=0", 416, "1: - to -: too_new from")
	f("c|default|0", "", 404, "0: - to -: not_found")

	// The payloads are those that the journal on disk has.
	var payloads [][]byte
	r, err := tape.Open(dir, nil)
	must.Succeed(t, err)
	for rec := (tape.Record{}); r.Next(&rec) == nil; {
		if rec.Kind == tape.Batch {
			payloads = append(payloads, rec.Payload)
		}
	}
	var got [][]byte
	tokens := 0
	for _, b := range a.ask(source, "", 200).Batches {
		if b.Idle {
			continue
		}
		got = append(got, b.Payload)
		batch, err := wire.Decode(b.Payload, wire.DefaultLimits)
		must.Succeed(t, err)
		for _, e := range batch.Events {
			tokens += len(e.Tokens)
		}
		if time.Since(b.Time) > time.Hour || b.Epoch != 1 {
			t.Errorf("batch %d is of %v, epoch %d", b.Seq, b.Time, b.Epoch)
		}
	}
	if !slices.EqualFunc(got, payloads, bytes.Equal) || tokens != 8*recordedBlock {
		t.Errorf("%d payloads with %d tokens, the journal has %d", len(got), tokens, len(payloads))
	}

	rec := a.send(source, "", journalType+", application/json;q=0.5", 200)
	if kind := rec.Header().Get("Content-Type"); kind != journalType {
		t.Errorf("Content-Type is %q", kind)
	}
	copied, prompt := t.TempDir(), filepath.Join(t.TempDir(), "question.json")
	must.Succeed(t, os.WriteFile(filepath.Join(copied, "00000001.journal"), rec.Body.Bytes(), 0o600))
	text, _ := json.Marshal(recordedTokens(8))
	question := fmt.Sprintf(`{"model":"m","block_size":%d,"instance_id":"a","token_ids":%s}`, recordedBlock, text)
	must.Succeed(t, os.WriteFile(prompt, []byte(question), 0o600))
	out, errs, err := runReplay(t, copied, "--query-file", prompt)
	if now, then := answerOf(t, dialect.url, question), ages.ReplaceAllString(strings.TrimSpace(out), ""); err != nil ||
		matched(now) != matched(then) || matched(now) != fmt.Sprint(7*recordedBlock) {
		t.Errorf("%v %s\n%s\nnow %s", err, errs, then, now)
	}
	if next := a.send(source, "&limit=3", journalType, 200).Header().Get("Conductor-Next"); next != "3" {
		t.Errorf("the rest begins at %q", next)
	}
	a.send(source, "&from=8", journalType, 416) // errors are JSON
}

// matched returns longest_matched of an answer with one row.
func matched(answer string) string {
	_, rest, _ := strings.Cut(answer, `"longest_matched":`)
	n, _, _ := strings.Cut(rest, ",")
	return n
}

// TestEventsFromJournal asks for batches that a small ring has no more, and for those of an
// epoch that is over: the journal on disk has them.
func TestEventsFromJournal(t *testing.T) {
	t.Parallel()
	for _, ring := range []string{"1KiB", "0"} {
		dir := filepath.Join(t.TempDir(), "journal")
		p := serveProcess(t, fmt.Sprintf("journal: {dir: %q, ring_bytes: %s}\n", dir, ring))
		e := recordEngine(t, p, "a", 1<<32)
		for i := range 20 {
			e.publish(engine.Stored, i, i+1)
		}
		e.settle(p, "a")
		awaitBatches(t, dir, 20)
		a := newHistorian(t, p)
		f := func(query string, status int, want string) {
			t.Helper()
			if got := a.ask("a|default|0", query, status).text(); got != want {
				t.Errorf("ring of %s, %s: %q, want %q", ring, query, got, want)
			}
		}
		f("&from=0&to=3", 200, "1: 0 to 19: 0 1 2 3")
		f("&from=2&limit=2", 200, "1: 0 to 19: 2 3 next 4")
		first := 0
		if last := a.ask("a|default|0", "&from=19", 200); ring != "0" {
			first = int(*last.First)
		}
		f("&from=19", 200, fmt.Sprintf("1: %d to 19: 19", first))
		f("&from=20", 416, fmt.Sprintf("1: %d to 19: too_new from", first))

		// Whatever the ring has, a follower gets everything.
		for from, seen := uint64(0), 0; ; {
			answer := a.ask("a|default|0", fmt.Sprintf("&from=%d&limit=3", from), 200)
			for _, b := range answer.Batches {
				if b.Seq != uint64(seen) {
					t.Errorf("batch %d where %d is due", b.Seq, seen)
				}
				seen++
			}
			if answer.Next == nil {
				if seen != 20 {
					t.Errorf("a follower got %d batches", seen)
				}
				break
			}
			from = *answer.Next
		}
	}
}

// TestEventsGone asks for batches that a small ring has no more, and a server without rings.
func TestEventsGone(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "journal: {ring_bytes: 2KiB}\n")
	e := recordEngine(t, p, "a", 1<<32)
	for i := range 20 {
		e.publish(engine.Stored, i, i+1)
	}
	e.settle(p, "a")
	a := newHistorian(t, p)
	all := a.ask("a|default|0", "", 200)
	if all.First == nil || *all.First < 5 || *all.First > 19 || *all.Last != 19 || len(all.Batches) != int(20-*all.First) {
		t.Errorf("the ring has %s", all.text())
	}
	if got, want := a.ask("a|default|0", "&from=0", 410).text(),
		fmt.Sprintf("1: %d to 19: gone from /admin/snapshot", *all.First); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p = serveProcess(t, "journal: {ring_bytes: 0}\n")
	e = recordEngine(t, p, "a", 1<<32)
	e.publish(engine.Stored, 0, 1)
	e.settle(p, "a")
	a = newHistorian(t, p)
	if got := a.ask("a|default|0", "", 410).text(); got != "0: - to -: gone from /admin/snapshot" {
		t.Errorf("without rings: %q", got)
	}
}
