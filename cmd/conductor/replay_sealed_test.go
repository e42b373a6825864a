package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
	"example.com/conductor/lab/sim/engine"
)

// keyFiles writes the files of two keys and returns their names.
func keyFiles(t *testing.T) (right, wrong string) {
	t.Helper()
	right, wrong = filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "key")
	must.Succeed(t, os.WriteFile(right, []byte(strings.Repeat("a7", keyfile.Size)+"\n"), 0o600))
	must.Succeed(t, os.WriteFile(wrong, []byte(strings.Repeat("7a", keyfile.Size)+"\n"), 0o600))
	return right, wrong
}

// TestReplayOpensSealedJournal records a server with journal.key_file, asks it, stops it, and
// replays its journal with the key, without one and with another one.
func TestReplayOpensSealedJournal(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	right, wrong := keyFiles(t)
	p := serveProcess(t, fmt.Sprintf("journal: {dir: %q, key_file: %q}\n", dir, right))
	a := recordEngine(t, p, "secret-instance", 1<<32)
	prompt, _ := json.Marshal(recordedTokens(8))
	question := fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":%s}`, recordedBlock, prompt)
	file := filepath.Join(t.TempDir(), "question.json")
	must.Succeed(t, os.WriteFile(file, []byte(question), 0o600))
	a.publish(engine.Stored, 0, 2)
	a.settle(p, "secret-instance") // any initial replay is over
	a.publish(engine.Stored, 2, 4)
	a.settle(p, "secret-instance")
	early := answerOf(t, p.url, question)
	a.publish(engine.Stored, 4, 6)
	a.settle(p, "secret-instance")
	late := answerOf(t, p.url, question)
	if !strings.Contains(early, `"longest_matched":64`) || !strings.Contains(late, `"longest_matched":96`) {
		t.Fatalf("the live answers are %s and %s", early, late)
	}

	// The running server reads its own files.
	eventually(t, "the batches from the files", func() (string, bool) {
		_, body := get(p.url + "/admin/events?source=secret-instance%7Cdefault%7C0&from=0&to=2")
		return body, strings.Count(body, `"payload"`) == 3
	})
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	p.cmd.Wait()

	same := func(want string, args ...string) {
		t.Helper()
		out, errs, err := runReplay(t, append([]string{dir, "--key-file", right, "--query-file", file}, args...)...)
		if got := ages.ReplaceAllString(strings.TrimSpace(out), ""); err != nil || got != want {
			t.Errorf("%v: %v\n%s\nwant %s\n%s", args, err, got, want, errs)
		}
	}
	same(late)
	same(early, "--until", "secret-instance:1")

	f := func(want string, args ...string) {
		t.Helper()
		_, errs, err := runReplay(t, append([]string{dir}, args...)...)
		if err == nil || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %v %q, want one line with %q", args, err, errs, want)
		}
	}
	const sealed = "is sealed: give the file of the server's setting journal.key_file with --key-file"
	f(sealed)
	f(sealed, "--until", "secret-instance:0")
	f("records that the key does not open", "--key-file", wrong)
	f("the key opens none", "--key-file", wrong, "--until", "secret-instance:0")
	f("--key-file: ", "--key-file", right+".none")
	f("a key has 32 bytes", "--key-file", file)

	files, err := tape.Files(dir)
	must.Succeed(t, err)
	for _, name := range files {
		data, err := os.ReadFile(name)
		must.Succeed(t, err)
		for _, clear := range []string{"secret-instance", "block_size", "hash.seed", a.Endpoint()} {
			if bytes.Contains(data, []byte(clear)) {
				t.Errorf("%s holds %q", name, clear)
			}
		}
	}
	if len(files) == 0 {
		t.Error("there is no file")
	}
}

// TestReplaySealedDamage changes one batch of a sealed journal: the replay has the rest, and the
// source is partial.
func TestReplaySealedDamage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	right, _ := keyFiles(t)
	p := serveProcess(t, fmt.Sprintf("journal: {dir: %q, key_file: %q}\n", dir, right))
	a := recordEngine(t, p, "a", 1<<32)
	for i := range 3 {
		a.publish(engine.Stored, 2*i, 2*i+2)
		a.settle(p, "a")
	}
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	p.cmd.Wait()
	key, err := keyfile.Read(right)
	must.Succeed(t, err)
	r, err := tape.Open(dir, key)
	must.Succeed(t, err)
	var at tape.Position
	for rec := (tape.Record{}); r.Next(&rec) == nil; {
		if rec.Kind == tape.Batch && rec.Seq == 1 {
			at = rec.At
		}
	}
	name := tape.Path(dir, at.Segment)
	data, err := os.ReadFile(name)
	must.Succeed(t, err)
	data[at.Offset+60] ^= 1 // in the payload
	must.Succeed(t, os.WriteFile(name, data, 0o600))
	out, errs, err := runReplay(t, dir, "--key-file", right)
	if err != nil || !strings.Contains(out, "journal_gap") || !strings.Contains(out, "0 torn ends, 1 stretch and") ||
		!strings.Contains(out, "applied  2 batches") {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
}
