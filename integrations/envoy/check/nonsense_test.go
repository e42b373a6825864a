package check

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestUnknownModel sees that the client gets the answer of an engine, which knows best what it serves.
func TestUnknownModel(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			e, p := startReal(t, v, settings{}, "")
			a, _ := e.post(`{"model":"nobody's","prompt":[1,2,3]}`, append([]string{"X-Sim", "404"}, explained...)...)
			if a.status != 404 || !strings.Contains(a.body, "simulated") || a.header.Get("X-Engine") == "" ||
				reasonOf(a) != "unknown_model" {
				t.Errorf("answer %s of engine %q by %q", a, a.header.Get("X-Engine"), a.header.Get("X-Conductor-Picker"))
			}
			if n := p.choices("unknown_model"); n != 1 {
				t.Errorf("%d choices", n)
			}
			// The engine is not left out for it.
			if a, _ := e.post(completion(1, 64), explained...); a.status != 200 || reasonOf(a) != "no_prefix" {
				t.Errorf("the next request: %s by %q", a, a.header.Get("X-Conductor-Picker"))
			}
		})
	}
}

// TestTooLarge sends a body that Envoy does not hold, one that the picker does not read, and one that it does.
func TestTooLarge(t *testing.T) {
	s := settings{edit: func(b bootstrap) {
		b.manager()["delayed_close_timeout"] = "60s" // so that the answer is read before the connection is reset
	}}
	e, p := startReal(t, variants[0], s, "")
	send := func(size int) (*http.Response, error) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() { // Envoy may answer before it has read all
			fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: test\r\n%s: 1\r\nContent-Length: %d\r\n\r\n", explained[0], size)
			_, _ = io.WriteString(conn, `{"model":"m","prompt":"`+strings.Repeat("x", size-25)+`"}`)
		}()
		return http.ReadResponse(bufio.NewReader(conn), nil)
	}
	for _, c := range []struct {
		size, status int
		reason       string
	}{{17 << 20, 413, ""}, {12 << 20, 200, "body"}, {1 << 20, 200, "tokenizer_failed"}} {
		r, err := send(c.size)
		if err != nil {
			t.Errorf("%d bytes: %v", c.size, err)
			continue
		}
		if got := reasonOf(answer{header: r.Header}); r.StatusCode != c.status || got != c.reason {
			t.Errorf("%d bytes: %s by %q, want %d by %q", c.size, r.Status, got, c.status, c.reason)
		}
	}
	if n := p.choices(""); n != 2 {
		t.Errorf("%d choices, want none for the body that Envoy refuses", n)
	}
}

// TestTokenizers has engines whose /tokenize never comes to an end. The load decides then, as soon as --tokenizer-timeout has passed.
func TestTokenizers(t *testing.T) {
	for _, how := range []struct {
		name    string
		result  string // of the metric; "" if it depends on the machine
		handler http.HandlerFunc
	}{
		{"nothing", "timeout", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"headers alone", "timeout", func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{"byte by byte", "timeout", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"tokens":[1`)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					fmt.Fprint(w, ",1")
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}},
		{"as fast as it can", "", func(w http.ResponseWriter, _ *http.Request) {
			piece := []byte(strings.Repeat(" ", 1<<20))
			for {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}},
		{"half of it", "unreachable", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"tokens":[1`)
		}},
	} {
		t.Run(how.name, func(t *testing.T) {
			timeout := "100ms"
			if how.result != "timeout" {
				timeout = "60s"
			}
			e, p := startReal(t, variants[0], settings{}, "", "--tokenizer-timeout", timeout)
			var asked atomic.Int64
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					asked.Add(1)
				}
				how.handler(w, r)
			})
			e.a.tokenize.Store(&handler)
			e.b.tokenize.Store(&handler)
			n := 0
			until(t, func() string { // on a slow machine the time may be over before an engine is asked
				n++
				a, _ := e.post(fmt.Sprintf(`{"model":"m","prompt":"text %d"}`, n), explained...)
				if a.status != 200 || reasonOf(a) != "tokenizer_failed" {
					t.Fatalf("answer %s by %q", a, a.header.Get("X-Conductor-Picker"))
				}
				if asked.Load() == 0 {
					return "no engine was asked"
				}
				return ""
			})
			if how.result != "" {
				if got := p.picker.metric("conductor_picker_tokenizations_total", fmt.Sprintf("result=%q", how.result)); got < 1 {
					t.Errorf("%g results %s", got, how.result)
				}
			}
			// A prompt of token ids needs no tokenizer.
			if a, _ := e.post(completion(1, 64), explained...); a.status != 200 || reasonOf(a) != "no_prefix" {
				t.Errorf("a prompt of token ids: %s by %q", a, a.header.Get("X-Conductor-Picker"))
			}
		})
	}
}

// nonsense is a server in place of Conductor. It tells the engines well once, and answers all else as the test says.
type nonsense struct {
	*httptest.Server
	engines  atomic.Pointer[string]           // the data of the event that tells them
	lose     chan struct{}                    // closed when the first watch is to end
	watches  atomic.Int64                     // further ones
	watching []http.HandlerFunc               // one after another; after the last one a watch tells nothing more
	asked    atomic.Int64                     // for candidates
	answer   atomic.Pointer[http.HandlerFunc] // to all requests but watches
}

func newNonsense(t *testing.T, watching ...http.HandlerFunc) *nonsense {
	c := &nonsense{lose: make(chan struct{}), watching: watching}
	var first atomic.Bool
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/conductor/v1/instances" && c.engines.Load() == nil:
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		case r.URL.Path == "/conductor/v1/instances" && first.CompareAndSwap(false, true):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: instances\ndata: %s\n\n", *c.engines.Load())
			_ = http.NewResponseController(w).Flush()
			select {
			case <-c.lose:
			case <-r.Context().Done():
			}
		case r.URL.Path == "/conductor/v1/instances":
			if n := c.watches.Add(1); int(n) <= len(c.watching) {
				c.watching[n-1](w, r)
			} else {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		default:
			if r.URL.Path == "/conductor/v1/candidates" {
				c.asked.Add(1)
			}
			if f := c.answer.Load(); f != nil {
				(*f)(w, r)
			}
		}
	}))
	t.Cleanup(c.CloseClientConnections)
	return c
}

// start starts a picker that asks it.
func (c *nonsense) start(t *testing.T) (*env, *programs) {
	t.Helper()
	t.Cleanup(c.Close)
	s := settings{started: func(e *env) {
		all := make([]map[string]any, 0, 2)
		for _, engine := range []*engine{e.a, e.b} {
			all = append(all, map[string]any{
				"instance_id": engine.name, "model": "m", "block_size": realBlock, "address": "http://" + engine.address,
			})
		}
		data, err := json.Marshal(map[string]any{"instances": all})
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		c.engines.Store(&text)
	}}
	return startReal(t, variants[0], s, c.URL)
}

// says answers with a body.
func says(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	}
}

// packed returns a map in msgpack. Its keys are short names, its values numbers, short texts, or bytes that are msgpack already.
func packed(pairs ...any) []byte {
	out := []byte{0x80 | byte(len(pairs)/2)}
	for _, v := range pairs {
		switch v := v.(type) {
		case string:
			out = append(append(out, 0xa0|byte(len(v))), v...)
		case int:
			out = binary.BigEndian.AppendUint64(append(out, 0xd3), uint64(v))
		case []byte:
			out = append(out, v...)
		}
	}
	return out
}

// TestNonsenseAnswers holds that requests go on by load if the server at the address of Conductor answers with nonsense.
func TestNonsenseAnswers(t *testing.T) {
	const html, mp = "text/html", "application/msgpack"
	row := func(longest, expected int) []byte {
		fields := packed("longest_matched", longest, "expected", expected)
		return packed("id", "x", "model", "m", "block_size", realBlock, "candidates", packed("a", fields))
	}
	most := []byte{0xdf, 0xff, 0xff, 0xff, 0xff} // a map of 4 billion, without them
	for _, kind := range []struct {
		name, contentType string
		body              []byte
	}{
		{"HTML", html, []byte("<html><body>It works!</body></html>")},
		{"nothing", mp, nil},
		{"JSON that is cut", "application/json", []byte(`{"id":"x","block_size":16,"candidates":{"a":{`)},
		{"msgpack that is cut", mp, row(16, 16)[:40]},
		{"a list", mp, []byte{0x93, 1, 2, 3}},
		{"fields of other types", mp, packed("id", 7, "block_size", "16", "candidates", []byte{0x91, 1})},
		{"a map of 4 billion", mp, most},
		{"4 billion candidates", mp, packed("candidates", most)},
		{"a text of 4 GB", mp, packed("id", []byte{0xdb, 0xff, 0xff, 0xff, 0xff})},
		{"10 MiB of zeros", mp, make([]byte, 10<<20)},
		{"10 MiB of zeros as HTML", html, make([]byte, 10<<20)},
		{"lists in lists", mp, []byte(strings.Repeat("\x91", 10<<20))},
		{"negative", mp, row(-16, -16)},
		{"more than there is", mp, row(1<<40, 1<<40)},
		{"a block size below 0", mp, packed("id", "x", "block_size", -1, "candidates", packed())},
	} {
		t.Run(kind.name, func(t *testing.T) {
			f := says(kind.contentType, kind.body)
			c := newNonsense(t)
			c.answer.Store(&f)
			e, p := c.start(t)
			for i := range 8 { // more than it takes until Conductor is not asked any more
				a, _ := e.post(completion(i, 64), explained...)
				if a.status != 200 || reasonOf(a) != "conductor_down" {
					t.Errorf("answer %s by %q", a, a.header.Get("X-Conductor-Picker"))
				}
			}
			if n := c.asked.Load(); n < 5 {
				t.Errorf("Conductor was asked %d times", n)
			}
			if n := p.picker.metric("conductor_picker_panics_total", ""); n != 0 {
				t.Errorf("%g panics", n)
			}
		})
	}
	// The same with sense, to see that it is that which counts.
	c := newNonsense(t)
	f := says(mp, row(16, 32))
	c.answer.Store(&f)
	e, _ := c.start(t)
	if a, _ := e.post(completion(0, 64), explained...); a.status != 200 || reasonOf(a) != "prefix" || a.header.Get("X-Engine") != "a" {
		t.Errorf("a good answer: %s by %q", a, a.header.Get("X-Conductor-Picker"))
	}
}

// TestNonsenseWatch has a Conductor that tells the engines well, and nonsense when it is asked again: the last list stays.
func TestNonsenseWatch(t *testing.T) {
	const events = "text/event-stream"
	watching := []http.HandlerFunc{
		says("text/html", []byte("<html><body>It works!</body></html>")),
		says(events, []byte("event: instances\ndata: {\"instances\":[{\"instance_id\":\"a\"\n\n")),
		says(events, []byte("event: changes\ndata: {\"gone\":7}\n\n")),
		says(events, make([]byte, 10<<20)),
		says(events, []byte("event: instances\ndata: \"text\"\n\n")),
		says(events, []byte("event: instances\ndata: [1,2]\n\n")),
		says(events, []byte("event: instances\ndata: null\n\n")),
		says(events, []byte("event: instances\ndata: {}\n\n")),
	}
	c := newNonsense(t, watching...)
	e, p := c.start(t)
	close(c.lose)
	i := 0
	until(t, func() string {
		i++
		a, _ := e.post(completion(i, 64))
		if a.status != 200 {
			t.Fatalf("after %d watches: %s", c.watches.Load(), a)
		}
		if n := c.watches.Load(); n <= int64(len(watching)) {
			return fmt.Sprintf("%d watches", n)
		}
		return ""
	})
	for i := range 4 {
		if a, _ := e.post(completion(1000+i, 64)); a.status != 200 {
			t.Errorf("in the end: %s", a)
		}
	}
	if n := p.picker.metric("conductor_picker_engine_available", ""); n != 2 {
		t.Errorf("the picker knows %g engines, want 2", n)
	}
}
