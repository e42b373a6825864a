package peer

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
	"example.com/conductor/internal/must"
)

// answers is a transport that answers by host, with the text "whole" or "part". The host "self" is the server that
// asks, "starting" is not ready yet, "busy" is another server that finds a loop, and nothing listens at "down".
type answers map[string]string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	switch r.URL.Host {
	case "self":
		rec.Header().Set(Header, r.Header.Get(Header))
		rec.WriteHeader(http.StatusLoopDetected)
		return rec.Result(), nil
	case "busy":
		rec.WriteHeader(http.StatusLoopDetected)
		return rec.Result(), nil
	case "starting":
		rec.WriteHeader(http.StatusServiceUnavailable)
		return rec.Result(), nil
	case "down":
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	if text := a[r.URL.Host]; text == "" || r.URL.Path != "/snapshot" || r.Header.Get("Accept") != "text/x" {
		rec.Code = http.StatusNotFound
	} else {
		rec.Header().Set("Content-Type", "text/x")
		rec.WriteString(text)
	}
	return rec.Result(), nil
}

// format takes the text "whole" for a snapshot of one block, and leaves a part out.
var format = Format{
	Path: "/snapshot", Accept: "text/x", Reasons: []string{"odd"},
	Read: func(body io.Reader, contentType string, into *ingest.Recovery, skip func(string)) error {
		text, err := io.ReadAll(body)
		skip("odd")
		err = errors.Join(err, into.Stored(&ingest.Stored{
			Source: registration.Registration{Instance: "a", Tenant: "default", Model: "m", BlockSize: 16, Type: registration.TypeVLLM},
			Shard:  scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16,
			Stretch: &ingest.Stretch{Engine: []uint64{7}}, Local: []uint64{8},
		}))
		if string(text) != "whole" || contentType != "text/x" {
			err = errors.Join(err, errors.New("the snapshot is torn"))
		}
		return err
	},
}

// restore fills a Conductor from the peers.
func restore(t *testing.T, p *Peers, c *conductor.Conductor) Status {
	t.Helper()
	p.Restore(t.Context(), &history.Loader{Conductor: c, TTL: time.Minute, Log: p.cfg.Log})
	return p.Status()
}

// TestRestore asks peers in order until one gives a whole snapshot. Nothing stays of the
// others.
func TestRestore(t *testing.T) {
	f := func(want string, blocks int, errs []string, peers ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			c := conductor.New(conductor.Options{Gate: gate, Log: zerolog.Nop()})
			defer c.Close()
			r := New(Config{
				Peers: peers, Formats: []Format{format}, Log: zerolog.Nop(),
				Client: &http.Client{Transport: answers{"good": "whole", "torn": "part"}},
			})
			st := restore(t, r, c)
			if st.State != want || st.Blocks != blocks || !slices.Equal(st.Errors, errs) {
				t.Errorf("%v: %+v", peers, st)
			}
			if want == Done && (st.Skipped["odd"] != 1 || st.Bytes != 5 || st.Seconds != 1) {
				t.Errorf("%v: %+v", peers, st)
			}
			if held := len(c.Services()); held != blocks {
				t.Errorf("%v: %d sources are left", peers, held)
			}
			close(gate)
		})
	}
	missing, torn := "http://none: it answers 404 Not Found", "http://torn: the snapshot is torn"
	f(None, 0, []string{})
	f(Done, 1, []string{}, "http://good")
	f(Done, 1, []string{missing, torn}, "http://none", "http://torn", "http://good/", "http://other")
	f(Failed, 0, []string{torn, missing}, "http://torn", "http://none")
	f(None, 0, []string{}, "http://self")
	f(Done, 1, []string{}, "http://self", "http://good")
}

// TestPeersThatStartToo says at the level info that peers are not up while this server has just been started, and that
// one of them is this server. What else is wrong with a peer is a warning.
func TestPeersThatStartToo(t *testing.T) {
	const away, itself = "a peer is not up yet", "a peer is this server itself, and is not asked again"
	f := func(after time.Duration, left int, want []string, peers ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			gate, log := make(chan struct{}), new(strings.Builder)
			c := conductor.New(conductor.Options{Gate: gate, Log: zerolog.Nop()})
			defer c.Close()
			r := New(Config{Peers: peers, Formats: []Format{format}, Log: zerolog.New(log),
				Client: &http.Client{Transport: answers{"torn": "part"}}})
			time.Sleep(after)
			restore(t, r, c)
			var got []string
			for line := range strings.Lines(log.String()) {
				var l struct{ Level, Message string }
				if err := json.Unmarshal([]byte(line), &l); err != nil {
					t.Fatal(err)
				}
				if l.Message != "recovering from a peer" {
					got = append(got, l.Level+": "+l.Message)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v after %s: %q", peers, after, got)
			}
			if got := len(r.Peers()); got != left {
				t.Errorf("%v: %d peers are left", peers, got)
			}
			close(gate)
		})
	}
	none := "info: no peer is up yet: this server starts without their blocks"
	f(0, 2, []string{"info: " + away, "info: " + itself, "info: " + away, none}, "http://down", "http://self", "http://starting")
	f(0, 0, []string{"info: " + itself}, "http://self")
	f(0, 2, []string{"info: " + away, "warn: a peer gave no whole snapshot", "error: no peer could be recovered from"}, "http://starting",
		"http://torn")
	f(0, 1, []string{"warn: a peer gave no whole snapshot", "error: no peer could be recovered from"}, "http://busy")
	f(startGrace, 1, []string{"warn: a peer gave no whole snapshot", "error: no peer could be recovered from"}, "http://down")
}

// trickle is a transport whose answers are pieces of text at an interval. The last piece does
// not end.
type trickle struct {
	pieces   []string
	interval time.Duration
}

func (f trickle) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	go func() {
		for _, piece := range f.pieces {
			io.WriteString(w, piece)
			select {
			case <-time.After(f.interval):
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
		w.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
}

// TestPatience gives up a peer that sends less than pace bytes in patience, and logs the
// progress of one that is slow.
func TestPatience(t *testing.T) {
	f := func(seconds float64, lines int, pieces ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			gate, log := make(chan struct{}), new(strings.Builder)
			c := conductor.New(conductor.Options{Gate: gate, Log: zerolog.Nop()})
			defer c.Close()
			r := New(Config{
				Peers: []string{"http://slow"}, Formats: []Format{format}, Log: zerolog.New(log),
				Client: &http.Client{Transport: trickle{pieces, 20 * time.Second}},
			})
			st := restore(t, r, c)
			if st.State != Failed || !slices.Equal(st.Errors, []string{"http://slow: it gave less than 16384 bytes in 30s"}) ||
				st.Seconds != seconds {
				t.Errorf("%+v", st)
			}
			if n := strings.Count(log.String(), "still recovering"); n != lines {
				t.Errorf("%d lines of progress, want %d: %s", n, lines, log)
			}
			close(gate)
		})
	}
	paced := strings.Repeat("x", pace)
	f(31, 1)
	f(31, 2, "a", "b")
	f(51, 2, paced, paced)
	f(71, 4, paced, paced, paced, "a")
}

// endless is a transport of peers that send 64 KiB at an interval, and never end. The peer "good" is like that of
// answers.
type endless struct {
	interval time.Duration
	claims   int64 // the length that they announce, -1 for none
}

func (e endless) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "good" {
		return answers{"good": "whole"}.RoundTrip(r)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: endlessBody{e, r.Context()}, ContentLength: e.claims}, nil
}

type endlessBody struct {
	endless
	ctx context.Context
}

func (b endlessBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.interval):
		return min(len(p), 64<<10), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (endlessBody) Close() error { return nil }

// TestEndlessPeers gives up peers that never end, by time and by bytes, and goes on with the next one.
func TestEndlessPeers(t *testing.T) {
	f := func(transport endless, room int64, state string, peers []string, errs ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			c := conductor.New(conductor.Options{Gate: gate, MaxBytesTotal: room, Log: zerolog.Nop()})
			defer c.Close()
			discards := format
			discards.Read = func(body io.Reader, contentType string, into *ingest.Recovery, skip func(string)) error {
				if contentType != "" {
					return format.Read(body, contentType, into, skip)
				}
				_, err := io.Copy(io.Discard, body)
				return err
			}
			r := New(Config{Peers: peers, Formats: []Format{discards}, Log: zerolog.Nop(), Client: &http.Client{Transport: transport}})
			st := restore(t, r, c)
			if st.State != state || !slices.Equal(st.Errors, errs) || st.Seconds > inAll.Seconds() {
				t.Errorf("%+v", st)
			}
			close(gate)
		})
	}
	all := []string{"http://a", "http://b", "http://good"}
	slow := []string{"http://a: it did not end within 5m0s", "http://b: it did not end within 2m30s"}
	f(endless{5 * time.Second, -1}, 0, Done, all, slow...)
	f(endless{5 * time.Second, 1 << 40}, 0, Done, all, slow...)
	f(endless{5 * time.Second, -1}, 0, Failed, all[:2], slow...)
	f(endless{0, -1}, 1<<20, Done, all, "http://a: it sent more than 32 bytes for each byte of index.max_bytes_total",
		"http://b: it sent more than 32 bytes for each byte of index.max_bytes_total")
	f(endless{0, 1 << 40}, 1<<20, Failed, all[:1],
		"http://a: it announces 1099511627776 bytes, more than 32 for each byte of index.max_bytes_total")
}

// TestPeers adds and removes peers.
func TestPeers(t *testing.T) {
	r := New(Config{Peers: []string{"b"}})
	must.Succeed(t, errors.Join(r.AddPeer("a"), r.AddPeer("a")))
	if r.RemovePeer("c") || !r.RemovePeer("b") || !slices.Equal(r.Peers(), []string{"a"}) {
		t.Errorf("%q", r.Peers())
	}
	if !r.RemovePeer("a") || r.Peers() == nil {
		t.Errorf("%q", r.Peers())
	}
	if err := r.AddPeer(strings.Repeat("x", maxPeerURL+1)); err == nil {
		t.Error("a URL of any length is taken")
	}
	for i := range maxPeers {
		must.Succeed(t, r.AddPeer(fmt.Sprint(i)))
	}
	if r.AddPeer("0") != nil || r.AddPeer("more") == nil || len(r.Peers()) != maxPeers {
		t.Errorf("%q", r.Peers())
	}
}

// TestPlainClient has peers that send elsewhere, or pack an endless answer into few bytes.
func TestPlainClient(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked++ }))
	defer other.Close()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(make([]byte, 1<<20))
	must.Succeed(t, errors.Join(err, z.Close()))
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("the peer may pack: %q", r.Header.Get("Accept-Encoding"))
		}
		if r.URL.Path == "/elsewhere/snapshot" {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	}))
	defer peer.Close()
	gate := make(chan struct{})
	c := conductor.New(conductor.Options{Gate: gate, Log: zerolog.Nop()})
	defer c.Close()
	defer close(gate)
	var read int64
	f := format
	f.Read = func(body io.Reader, _ string, _ *ingest.Recovery, _ func(string)) (err error) {
		read, err = io.Copy(io.Discard, body)
		return errors.Join(err, errors.New("it is no snapshot"))
	}
	r := New(Config{Peers: []string{peer.URL + "/elsewhere", peer.URL}, Formats: []Format{f}, Log: zerolog.Nop()})
	st := restore(t, r, c)
	want := []string{peer.URL + "/elsewhere: it answers 302 Found", peer.URL + ": it is no snapshot"}
	if st.State != Failed || !slices.Equal(st.Errors, want) || asked > 0 || read != int64(packed.Len()) {
		t.Errorf("%+v, the other place was asked %d times, %d of %d bytes were read", st, asked, read, packed.Len())
	}
}
