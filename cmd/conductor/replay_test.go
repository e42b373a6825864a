package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

const recordedBlock = 16 // tokens

// recordedTokens are the tokens of the first n blocks of the one prompt.
func recordedTokens(n int) (tokens []uint32) {
	for i := range uint32(n * recordedBlock) {
		tokens = append(tokens, 1000+i)
	}
	return tokens
}

// recordedEngine is a publisher on real sockets that stores one prompt, block by
// block.
type recordedEngine struct {
	*publisher.Publisher
	t    *testing.T
	salt uint64 // of its hashes
}

// numbered returns the digest that vLLM's events call n.
func numbered(n uint64) (d digest.Digest) {
	binary.BigEndian.PutUint64(d[len(d)-8:], n)
	return d
}

func (e recordedEngine) publish(kind engine.Kind, from, to int) {
	e.t.Helper()
	ev := engine.Event{Kind: kind, Tier: truth.Device}
	for i := from; i < to; i++ {
		ev.Hashes = append(ev.Hashes, numbered(e.salt+uint64(i)))
	}
	if kind == engine.Stored {
		ev.Parent, ev.HasParent = numbered(e.salt+uint64(from)-1), from > 0
		ev.Tokens = recordedTokens(to)[from*recordedBlock:]
	}
	if _, err := e.Publish([]engine.Event{ev}); err != nil {
		e.t.Fatal(err)
	}
}

// recordEngine starts an engine and tells the server about it.
func recordEngine(t *testing.T, p *process, instance string, salt uint64) recordedEngine {
	t.Helper()
	pub, err := publisher.Listen(publisher.Options{Host: "127.0.0.1", BlockSize: recordedBlock, Wire: publisher.VLLMMap{}, Ring: 100})
	must.Succeed(t, err)
	t.Cleanup(func() { pub.Close() })
	e := recordedEngine{pub, t, salt}
	e.register(p, instance)
	return e
}

// register tells a server about an engine.
func (e recordedEngine) register(p *process, instance string) {
	e.t.Helper()
	body := fmt.Sprintf(`{"endpoint":%q,"replay_endpoint":%q,"type":"vLLM","modelname":"m","instance_id":%q,"block_size":%d,"dp_rank":0}`,
		e.Endpoint(), e.ReplayEndpoint(), instance, recordedBlock)
	post(e.t, p.url+"/register", body, 200)
}

// settle waits until the server has applied everything an engine published.
func (e recordedEngine) settle(p *process, instance string) {
	e.t.Helper()
	want := fmt.Sprintf("%s synced %d\n", instance, e.LastSeq())
	eventually(e.t, "never settled to "+want, func() (string, bool) {
		got := recordedServices(e.t, p.url)
		return got, strings.Contains(got, want)
	})
}

// servicesOf returns the rows of GET /services, and its text.
func servicesOf[T any](t *testing.T, url string) (rows []T, body string) {
	t.Helper()
	_, body = get(url + "/services")
	var answer struct{ Services []T }
	decode(t, body, &answer)
	return answer.Services, body
}

func recordedServices(t *testing.T, url string) (out string) {
	t.Helper()
	rows, _ := servicesOf[client.Service](t, url)
	for _, s := range rows {
		seq := int64(-1)
		if s.LastSeq != nil {
			seq = int64(*s.LastSeq)
		}
		out += fmt.Sprintf("%s %s %d\n", s.InstanceID, s.State, seq)
	}
	return out
}

var ages = regexp.MustCompile(`"age_ms":[0-9]+|"(1|10)s":[0-9.]+`)

// answerOf asks with detail; ages are taken out.
func answerOf(t *testing.T, url, body string) string {
	t.Helper()
	return ages.ReplaceAllString(strings.TrimSpace(post(t, url+"/query?detail=1", body, 200)), "")
}

// runReplay runs the command and returns its two outputs.
func runReplay(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := command(append([]string{"replay"}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// awaitBatches waits until a journal holds a number of batches.
func awaitBatches(t *testing.T, dir string, want int) {
	t.Helper()
	eventually(t, "batches in the journal", func() (string, bool) {
		r, err := tape.Open(dir, nil)
		must.Succeed(t, err)
		n := 0
		for rec := (tape.Record{}); r.Next(&rec) == nil; {
			if rec.Kind == tape.Batch {
				n++
			}
		}
		return fmt.Sprint(n), n == want
	})
}

// TestReplayAnswersAsServer records a server that follows two engines, asks it at two moments,
// kills it, and holds that its journal gives the same answers.
func TestReplayAnswersAsServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	p := serveProcess(t, fmt.Sprintf("journal: {dir: %q}\nhash: {seed: 7}\n", dir))
	a, b := recordEngine(t, p, "a", 1<<32), recordEngine(t, p, "b", 1<<33)
	prompt, _ := json.Marshal(recordedTokens(8))
	question := fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":%s}`, recordedBlock, prompt)
	file := filepath.Join(t.TempDir(), "question.json")
	must.Succeed(t, os.WriteFile(file, []byte(question), 0o600))

	b.publish(engine.Stored, 0, 3)
	b.settle(p, "b")
	a.publish(engine.Stored, 0, 4)
	a.settle(p, "a") // any initial replay is over
	a.publish(engine.Stored, 4, 6)
	a.settle(p, "a")
	early := answerOf(t, p.url, question)
	a.publish(engine.Removed, 2, 6)
	a.settle(p, "a")
	b.publish(engine.Stored, 3, 8)
	b.settle(p, "b")
	late := answerOf(t, p.url, question)
	awaitBatches(t, dir, 5)
	if !strings.Contains(early, `"longest_matched":96`) || !strings.Contains(late, `"longest_matched":128`) {
		t.Fatalf("the live answers are %s and %s", early, late)
	}
	if _, body := get(p.url + "/metrics"); !regexp.MustCompile(`(?s)conductor_journal_bytes_total [1-9].*conductor_journal_dropped_total ` +
		`0\n.*conductor_journal_errors_total 0\n`).MatchString(body) {
		t.Error("metrics lack the journal")
	}
	same := func(want string, args ...string) {
		t.Helper()
		out, errs, err := runReplay(t, append([]string{dir, "--query-file", file}, args...)...)
		if got := ages.ReplaceAllString(strings.TrimSpace(out), ""); err != nil || got != want {
			t.Errorf("%v: %v\n%s\nwant %s\n%s", args, err, got, want, errs)
		}
	}
	same(late) // next to the running server
	p.cmd.Process.Kill()
	p.cmd.Wait()
	same(late)
	same(late, "--until", "b:1")
	same(early, "--until", "a:1")
	same(early, "--until", "a|default|0:1/1")

	out, _, err := runReplay(t, dir, "--until", "a:1", "--model", "m", "--block-size", "16", "--tokens", strings.Trim(string(prompt), "[]"))
	if err != nil || !regexp.MustCompile(`default +a +96 +96 +0 +0 +0:96 +synced\ndefault +b +48 +48 +0 +0 +0:48 +synced\n$`).
		MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = runReplay(t, dir)
	if err != nil || !regexp.MustCompile(`(?s)runs of the server: 1.*applied +5 batches of 2 registrations.*missing +0 .*\na +default +0 `+
		`+vLLM +m +16 +synced +1 +2 +2 .*\nb `).MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	var summary struct {
		Summary  struct{ Batches, Sources int }
		Services struct{ Count int }
		Runs     []struct{ Batches int }
	}
	out, _, err = runReplay(t, dir, "--json")
	if decode(t, out, &summary); err != nil || summary.Summary.Batches != 5 || summary.Summary.Sources != 2 ||
		summary.Services.Count != 2 || len(summary.Runs) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	f := func(want string, args ...string) {
		t.Helper()
		_, errs, err := runReplay(t, args...)
		if err == nil || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %v %q, want one line with %q", args, err, errs, want)
		}
	}
	f("holds no journal", t.TempDir())
	f("no such file", filepath.Join(dir, "none"))
	f(`no source "c"`, dir, "--until", "c:1")
	f(`no batch 9 of "a|default|0"; it holds 1/0 to 1/2`, dir, "--until", "a:9")
	f("SOURCE:SEQ", dir, "--until", "a")
	f("--model", dir, "--tokens", "1")
	f("--tokens", dir, "--model", "m")
	f("no such file", dir, "--query-file", "none.json")
	f("no JSON object", dir, "--query-file", os.Args[0])
	f(`"x"`, dir, "--model", "m", "--block-size", "16", "--tokens", "1,x")
	f("--listen and --tokens exclude each other", dir, "--listen", "127.0.0.1:0", "--tokens", "1")
	foreign := t.TempDir()
	os.WriteFile(filepath.Join(foreign, "00000001.journal"), []byte("hello"), 0o600)
	f("holds no record", foreign)
}

// TestReplayUntilTime records two runs and asks for the state at times in, between, before
// and after them.
func TestReplayUntilTime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	settings := fmt.Sprintf("journal: {dir: %q}\n", dir)
	p := serveProcess(t, settings)
	a, b := recordEngine(t, p, "a", 1<<32), recordEngine(t, p, "b", 1<<33)
	b.publish(engine.Stored, 0, 3)
	b.settle(p, "b")
	a.publish(engine.Stored, 0, 4)
	a.settle(p, "a")
	a.publish(engine.Stored, 4, 6)
	a.settle(p, "a")
	awaitBatches(t, dir, 3)
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p = serveProcess(t, settings)
	b.publish(engine.Stored, 3, 5)
	body := fmt.Sprintf(`{"endpoint":%q,"replay_endpoint":%q,"type":"vLLM","modelname":"m","instance_id":"b","block_size":%d,"dp_rank":0}`,
		b.Endpoint(), b.ReplayEndpoint(), recordedBlock)
	post(t, p.url+"/register", body, 200)
	b.settle(p, "b")
	awaitBatches(t, dir, 5)
	p.cmd.Process.Kill()
	p.cmd.Wait()

	r, err := tape.Open(dir, nil)
	must.Succeed(t, err)
	var runs tape.Runs
	var batches []tape.Record
	for rec := (tape.Record{}); r.Next(&rec) == nil; {
		if runs.AddRecord(&rec); rec.Kind == tape.Batch {
			batches = append(batches, rec)
		}
	}
	if len(runs.List) != 2 || len(batches) != 5 {
		t.Fatalf("%d runs with %d batches", len(runs.List), len(batches))
	}
	f := func(at time.Time, want ...string) {
		t.Helper()
		out, errs, err := runReplay(t, dir, "--until", at.Format(time.RFC3339Nano))
		if err != nil {
			t.Errorf("%v: %v %s", at, err, errs)
		}
		for i, run := range runs.List {
			want = append(want, fmt.Sprintf(`run +%016x from %s to %s, sources: %d, batches: %d\n`, run.ID,
				run.First.Format(time.RFC3339Nano), run.Last.Format(time.RFC3339Nano), 2-i, 3-i))
		}
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(out) {
				t.Errorf("%v: no %q in\n%s", at, w, out)
			}
		}
	}
	const row = ` +default +0 +vLLM +m +16 +\S+ +1 +`
	f(batches[1].Time, `a`+row+`0 `, `b`+row+`0 `, `stopped +at \S+, the last record up to \S+\n`)
	f(batches[2].Time.Add(-1), `a`+row+`0 `)
	f(batches[2].Time, `a`+row+`1 `)
	f(runs.List[1].First.Add(-1), `a`+row+`1 `, `b`+row+`0 `, `; the run ends there, the next one begins at `+
		runs.List[1].First.Format(time.RFC3339Nano))
	f(time.Now().Add(time.Hour), `b`+row+`1 `, `; the journal ends there`)
	out, errs, err := runReplay(t, dir, "--until", "0s")
	if err != nil || !strings.Contains(out, "; the journal ends there") || strings.Contains(out, "\na ") {
		t.Errorf("now: %v %s\n%s", err, errs, out)
	}
	_, errs, err = runReplay(t, dir, "--until", runs.List[0].First.Add(-1).Format(time.RFC3339Nano))
	if want := "it begins at " + runs.List[0].First.Format(time.RFC3339Nano); err == nil || !strings.Contains(errs, want) {
		t.Errorf("before the journal: %v %q, want %q", err, errs, want)
	}
}

// TestReplayListens serves a past, which cannot be changed.
func TestReplayListens(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	p := serveProcess(t, fmt.Sprintf("journal: {dir: %q, max_bytes: 8MiB}\n", dir))
	e := recordEngine(t, p, "a", 1)
	e.publish(engine.Stored, 0, 2)
	e.settle(p, "a")
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	p.cmd.Wait()

	cmd := command("replay", dir, "--listen", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), "the past is at ")
	if err != nil || !ok {
		t.Fatalf("%v %q", err, line)
	}
	if got := recordedServices(t, url); got != "a synced 0\n" {
		t.Errorf("services: %s", got)
	}
	if got := answerOf(t, url, `{"model":"m","block_size":1,"token_ids":[1]}`); got != `{"warnings":["model \"m\" of tenant \"default\" `+
		`is registered with block size 16, not 1"]}` {
		t.Errorf("another deployment: %s", got)
	}
	if status, body := get(url + "/global_view"); status != 200 || !strings.Contains(body, `"blocks":2`) {
		t.Errorf("global view: %d %s", status, body)
	}
	post(t, url+"/conductor/v1/register",
		`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"b","block_size":16,"dp_rank":3}`, 403)
	if got := statusAs(t, url+"/services", "evil.example"); got != http.StatusForbidden {
		t.Errorf("a page whose name leads here: %d", got)
	}
	must.Succeed(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
}
