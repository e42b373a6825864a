// Package conformance runs the scripts of dialects that others define: publishers on real
// sockets, requests, comparing answers, servers as processes. The test of a dialect adds
// its own commands. These are common:
//
//	GET|POST|... path     a request: headers (Name: value), then the body. Expected: status,
//	                      headers (name: value), then the body as in CompareBody
//	publisher P           PUB and ROUTER sockets; $P.live and $P.replay are their endpoints.
//	                      topic=, frames=3|4 (of replies), sentinel=no
//	send P                one message, a frame per line: "text", u64 N, hex ...,
//	                      msgpack VALUE ({"$bin": hex} is bytes)
//	restart P, reopen P   new sockets on the same ports, from sequence 0 or going on
//	close P               no sockets
//	gone P                waits until no client is subscribed
//	requests P            the replay requests so far, or the first
package conformance

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

// Ours is the kind of our server.
const Ours = "ours"

// Script is a script of a dialect while it runs.
type Script struct {
	scripttest.Runner
	Base    string // URL of the server
	Engines map[string]*Engine
	Topic   string // of publishers that name none
}

// Scripts runs a subtest for each script of the dialect, which is the package of the test.
func Scripts(t *testing.T, run func(t *testing.T, name, file string)) {
	t.Helper()
	files, err := filepath.Glob("testdata/conformance/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) { run(t, name, file) })
	}
}

// KindOf returns Ours if a server has our health endpoint, else theirs.
func KindOf(t *testing.T, url, theirs string) string {
	t.Helper()
	resp, err := http.Get(url + "/conductor/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return Ours
	}
	return theirs
}

// Conductor returns a Conductor that reads real sockets until the test ends.
func Conductor(t *testing.T, opts conductor.Options) *conductor.Conductor {
	opts.HashSeed, opts.Log = 1337, zerolog.Nop()
	opts.Stream = stream.Config{
		Transport:     zmq.Transport{},
		Decode:        func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) },
		ReplayTimeout: 5 * time.Second,
		StaleAfter:    30 * time.Second,
		Queue:         1024,
		Replays:       stream.NewLimiter(8),
	}
	c := conductor.New(opts)
	t.Cleanup(c.Close)
	return c
}

// Common runs a step that all dialects have, requests excluded. It reports whether the
// step was one.
func (s *Script) Common(st *scripttest.Step) (got string, ok bool) {
	s.T.Helper()
	var err error
	switch st.Name {
	case "publisher":
		var e *Engine
		if e, err = Open(s.Key(st, "topic", s.Topic), s.Key(st, "frames", "4"), s.Key(st, "sentinel", "yes") == "yes"); err != nil {
			break
		}
		s.T.Cleanup(e.Close)
		name := s.Word(st, 0)
		s.Engines[name] = e
		s.Vars[name+".live"], s.Vars[name+".replay"] = e.Live, e.Replay
	case "send":
		s.At(st).Send(s.T, s.frames(st))
	case "restart":
		err = s.At(st).Restart()
	case "reopen":
		err = s.At(st).Reopen()
	case "close":
		s.At(st).Close()
	case "gone":
		if !scripttest.Until(func() bool { return !s.At(st).Heard() }) {
			s.T.Fatalf("line %d: a client is still subscribed", st.Line)
		}
	case "requests":
		if got = s.At(st).Requested(); st.Has("first") {
			got, _, _ = strings.Cut(got, "\n")
		}
	default:
		return "", false
	}
	if err != nil {
		s.T.Fatalf("line %d: %v", st.Line, err)
	}
	return got, true
}

// At returns the publisher that a step names.
func (s *Script) At(st *scripttest.Step) *Engine {
	s.T.Helper()
	e := s.Engines[s.Word(st, 0)]
	if e == nil {
		s.T.Fatalf("line %d: no publisher %s", st.Line, st.Words[0])
	}
	return e
}

// Value reads JSON as DecodeValue does.
func (s *Script) Value(st *scripttest.Step, text string) any {
	s.T.Helper()
	v, err := DecodeValue(s.Expand(text))
	if err != nil {
		s.T.Fatalf("line %d: %q: %v", st.Line, text, err)
	}
	return v
}

// frames reads the input of a send step.
func (s *Script) frames(st *scripttest.Step) (frames [][]byte) {
	for _, line := range st.Input {
		var frame []byte
		var err error
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "u64":
			var n uint64
			n, err = strconv.ParseUint(rest, 10, 64)
			frame = binary.BigEndian.AppendUint64(nil, n)
		case "hex":
			frame, err = hex.DecodeString(rest)
		case "msgpack":
			frame = Encode(s.Value(st, rest))
		default:
			frame = []byte(s.Value(st, line).(string))
		}
		if err != nil {
			s.T.Fatalf("line %d: %v", st.Line, err)
		}
		frames = append(frames, frame)
	}
	return frames
}

// Do sends one request as it is and returns status, headers and body.
func (s *Script) Do(method, path string, headers map[string]string, body []byte) (int, http.Header, []byte) {
	s.T.Helper()
	req, err := http.NewRequestWithContext(s.T.Context(), method, s.Base+path, bytes.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.T.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		s.T.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, resp.Header, answer
}

// Headers splits the input of a request into headers and body.
func (s *Script) Headers(lines []string) (headers map[string]string, body []string) {
	headers = make(map[string]string)
	for len(lines) > 0 && isHeader(lines[0]) {
		name, value, _ := strings.Cut(lines[0], ":")
		headers[name], lines = s.Expand(strings.TrimSpace(value)), lines[1:]
	}
	return headers, lines
}

// CompareAnswer compares an answer with its expectation: status, headers, body.
func (s *Script) CompareAnswer(want []string, status int, header http.Header, body string) error {
	want = s.ExpandAll(want)
	if len(want) == 0 || want[0] != strconv.Itoa(status) {
		return fmt.Errorf("another status")
	}
	for want = want[1:]; len(want) > 0 && isHeader(want[0]); want = want[1:] {
		name, value, _ := strings.Cut(want[0], ":")
		if !sameHeader(header, name, strings.TrimSpace(value)) {
			return fmt.Errorf("header %s is %q", name, header.Values(name))
		}
	}
	return CompareBody(want, body)
}
