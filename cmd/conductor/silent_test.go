package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// silentListeners starts a server with a listener of each kind, over TLS, and returns the addresses.
func silentListeners(t *testing.T, ca *authority, text string) (p *process, addresses map[string]string) {
	t.Helper()
	cert, key := ca.issue("server", 10, time.Now().Add(time.Hour))
	p, rpc := grpcProcess(t, fmt.Sprintf("tls: {cert: %s, key: %s}\n%s", cert, key, text), "--listen", "127.0.0.1:0=dynamo")
	p.url = strings.Replace(p.url, "http:", "https:", 1)
	return p, map[string]string{config.Conductor: strings.TrimPrefix(p.url, "https://"), config.GRPC: rpc,
		config.Dynamo: p.listener(t, config.Dynamo)}
}

// trusting returns settings of TLS for clients of an authority's servers.
func trusting(ca *authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}, ServerName: "127.0.0.1"}
}

// TestConnectionsWithoutRequestEnd opens connections to every listener that ask for nothing, with and without TLS.
// The server closes each.
func TestConnectionsWithoutRequestEnd(t *testing.T) {
	t.Parallel()
	const (
		preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
		settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		ping     = "\x00\x00\x08\x06\x00\x00\x00\x00\x0001234567"
		half     = "\x00\x00\x01\x01\x01\x00\x00\x00\x01\x82" // of a header block: :method: GET
	)
	const limits = "limits: {idle_timeout: 1h}\n# fixed: {readtimeout: 3s}\n"
	ca := newAuthority(t, "ours")
	_, withTLS := silentListeners(t, ca, limits)
	p, rpc := grpcProcess(t, limits, "--listen", "127.0.0.1:0=dynamo")
	plain := map[string]string{config.Conductor: strings.TrimPrefix(p.url, "http://"), config.GRPC: rpc,
		config.Dynamo: p.listener(t, config.Dynamo)}
	var waiting sync.WaitGroup
	ends := func(name string, c net.Conn, sends string) {
		waiting.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(5 * time.Minute)) // an hour, if nothing but idle_timeout ends it
			io.WriteString(c, sends)
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: it stays open", name)
			}
		})
	}
	for sends, name := range map[string]string{
		"": "nothing", preface: "a preface", preface + settings: "settings", preface + settings + ping: "a ping",
		preface + settings + half: "half a header block",
		"GET / HTTP/1.1\r\n":      "half a header",
	} {
		for dialect := range plain {
			c, err := net.Dial("tcp", plain[dialect])
			must.Succeed(t, err)
			ends(dialect+"/"+name, c, sends)
			c, err = net.Dial("tcp", withTLS[dialect])
			must.Succeed(t, err)
			ends(dialect+" over TLS/"+name, tls.Client(c, trusting(ca)), sends)
			c, err = net.Dial("tcp", withTLS[dialect])
			must.Succeed(t, err)
			ends(dialect+" without a handshake/"+name, c, "\x16")
		}
	}
	waiting.Wait()
}

// connectionMetrics finds how many connections are open, and how many were closed for new ones.
var connectionMetrics = regexp.MustCompile(`(?m)^conductor_connections(?:_refused_total\{.*\})? (\d+)$`)

// TestSilentConnectionsLockNobodyOut opens as many silent connections as the server takes, from one address and
// from several. Clients of every listener are answered, also those of the same address.
func TestSilentConnectionsLockNobodyOut(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	p, addresses := silentListeners(t, ca, "limits: {idle_timeout: 1h}\n# fixed: {connections: 300, readtimeout: 1h}\n")
	clients := func() {
		t.Helper()
		for _, url := range []string{p.url + "/services", "https://" + addresses[config.Dynamo] + "/workers", p.url + "/health"} {
			resp, err := ca.client("", "").Get(url)
			must.Succeed(t, err)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d", url, resp.StatusCode)
			}
		}
		conn := dialed(t, addresses[config.GRPC], "", credentials.NewTLS(trusting(ca)))
		if code, text := codeOf(inTime(t), conn, pb.Conductor_Query_FullMethodName); code == codes.Unavailable ||
			code == codes.DeadlineExceeded {
			t.Errorf("gRPC: %s %s", code, text)
		}
		conn.Close()
	}
	watcher := ca.client("", "")
	watcher.Transport.(*http.Transport).DisableKeepAlives = false
	page := func(path string) string {
		t.Helper()
		resp, err := watcher.Get(p.url + path)
		must.Succeed(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		return string(text)
	}
	page("/services") // the connection of an admitted client makes no room
	opened := 0
	silent := func(from string, n int) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for range n / len(addresses) {
			for _, at := range addresses {
				c, err := d.DialContext(context.Background(), "tcp", at)
				must.Succeed(t, err)
				t.Cleanup(func() { c.Close() })
				io.WriteString(c, "\x16")
				opened++
			}
		}
		// Not before the server has accepted them: the next client would have to ask faster than they are accepted.
		eventually(t, "the server has not accepted all connections", func() (string, bool) {
			text, accepted := page("/metrics"), 0
			for _, m := range connectionMetrics.FindAllStringSubmatch(text, -1) {
				n, err := strconv.Atoi(m[1])
				must.Succeed(t, err)
				accepted += n
			}
			return text, accepted > opened
		})
	}
	silent("127.0.0.1", 300)
	clients()
	eventually(t, "the log does not tell of the address", func() (string, bool) {
		log := p.log()
		return log, strings.Contains(log, "limits.connections_per_address") && strings.Contains(log, `"address":"127.0.0.1"`)
	})
	if runtime.GOOS != "linux" {
		return // this machine has one address of loopback
	}
	for i := range 5 {
		silent(fmt.Sprintf("127.0.0.%d", 2+i), 100)
	}
	clients()
	text := page("/metrics")
	for _, reason := range []string{"room", "room_at_address"} {
		if line := fmt.Sprintf("conductor_connections_refused_total{reason=%q} ", reason); !strings.Contains(text, line) ||
			strings.Contains(text, line+"0\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}
