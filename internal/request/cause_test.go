package request

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestExplain asks servers that fail in every way that a mistyped address leads to.
func TestExplain(t *testing.T) {
	f := func(base, want string, c *http.Client) {
		t.Helper()
		_, _, err := Do(t.Context(), c, http.MethodGet, base+"/health", nil)
		if err == nil {
			t.Fatalf("%s: an answer", base)
		}
		at := strings.TrimPrefix(strings.TrimPrefix(base, "http://"), "https://")
		want = strings.ReplaceAll(want, "AT", at)
		if got := Explain(base, err); !strings.HasPrefix(got.Error(), want) || !errors.Is(got, err) {
			t.Errorf("%s: %v\nwant %s\nof   %v", base, got, want, err)
		}
	}
	plain := &http.Client{Transport: &http.Transport{}}

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	f("http://"+closed.Addr().String(), "no server listens at AT: start one with conductor serve, or name it with --server", plain)

	quiet := log.New(io.Discard, "", 0)
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	f("https://"+web.Listener.Addr().String(), "AT does not speak TLS: name it as http://AT", plain)

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	defer secure.Close()
	f(secure.URL, "AT shows a certificate of an authority that this machine does not trust: name the file of that authority with --cacert",
		plain)
	trusting := secure.Client()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", secure.Listener.Addr().String())
	}
	trusting.Transport.(*http.Transport).DialContext = dial
	f("https://conductor.test:1", `the certificate of AT is not for "conductor.test" but for example.com, `, trusting)

	for _, first := range []bool{true, false} {
		f("http://conductor.test:1", "what listens at AT does not speak HTTP",
			talksTo("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\r\n\r\n", first))
		f("http://conductor.test:1", "AT closed the connection without an answer", talksTo("", first))
	}

	stop := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	defer silent.Close()
	defer close(stop)
	f(silent.URL, "AT has taken the request, but does not answer in time", &http.Client{Timeout: 50 * time.Millisecond})

	nowhere := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no resolver")
	}}
	f("http://conductor.test:1", `the address of the host "conductor.test" cannot be looked up`,
		&http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Resolver: nowhere}).DialContext}})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Do(ctx, plain, http.MethodGet, web.URL, nil); Explain(web.URL, err) != context.Canceled {
		t.Errorf("interrupted: %v", Explain(web.URL, err))
	}
}

// talksTo returns a client of a server that says text on each connection and closes it. With first, net/http has read
// the text before it begins with the request; otherwise it reads nothing until the request is written.
func talksTo(text string, first bool) *http.Client {
	dial := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			io.WriteString(far, text)
			far.Close()
		}()
		return &orderedConn{Conn: near, written: make(chan struct{}), closed: make(chan struct{}), first: first}, nil
	}
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if first {
				<-info.Conn.(*orderedConn).closed // net/http has seen the text, and gives the connection up
			}
		}})
		return (&http.Transport{DialContext: dial}).RoundTrip(r.WithContext(ctx))
	})}
}

// orderedConn reads before the first write if first is true, and only after it otherwise.
type orderedConn struct {
	net.Conn
	first           bool
	write, shut     sync.Once
	written, closed chan struct{}
}

func (c *orderedConn) Read(p []byte) (int, error) {
	if !c.first {
		<-c.written
	}
	return c.Conn.Read(p)
}

func (c *orderedConn) Write(p []byte) (int, error) {
	c.write.Do(func() { close(c.written) })
	return len(p), nil
}

func (c *orderedConn) Close() error {
	c.shut.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
