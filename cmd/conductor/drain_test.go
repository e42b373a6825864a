package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

func drainingProcess(t *testing.T, drain string) *process {
	t.Helper()
	cmd := command("serve", "--listen", "127.0.0.1:0=conductor")
	cmd.Env = append(cmd.Env, "CONDUCTOR_SHUTDOWN_DRAIN="+drain)
	return startCommand(t, cmd)
}

// patron asks over one connection for as long as the server keeps it, then over the next one. It
// asks by hand: net/http would hide a connection that is cut.
type patron struct {
	address string
	conn    net.Conn
	answers *bufio.Reader
	asked   int // over conn
}

// ask asks once. It reports false once the server takes no connections, and an error for a
// request that was cut.
func (p *patron) ask() (more bool, err error) {
	if p.conn == nil {
		if p.conn, err = net.Dial("tcp", p.address); err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
				err = nil
			}
			return false, err
		}
		p.answers, p.asked = bufio.NewReader(p.conn), 0
	}
	p.asked++
	const body = `{"model":"m","block_size":16,"token_ids":[1,2,3]}`
	_, err = fmt.Fprintf(p.conn, "POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
	var res *http.Response
	if err == nil {
		_, err = p.answers.Peek(1) // io.EOF: nothing of an answer came
	}
	if err == nil {
		res, err = http.ReadResponse(p.answers, nil)
	}
	switch {
	case err != nil && p.asked == 1 && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)):
		return false, nil // the server had not taken the connection, or ended before it had time to read the request
	case err != nil:
		return false, fmt.Errorf("request %d of a connection: %w", p.asked, err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		return false, fmt.Errorf("status %d", res.StatusCode)
	}
	if res.Close {
		p.conn.Close()
		p.conn = nil
	}
	return true, nil
}

// A server that stops cuts no request of 200 clients that keep their connections.
func TestDrain(t *testing.T) {
	t.Parallel()
	p := drainingProcess(t, "10m")
	const patrons = 200
	var clients sync.WaitGroup
	var draining atomic.Bool
	var before, meanwhile atomic.Int64 // answers, and clients that got one while the server drains
	for range patrons {
		clients.Go(func() {
			c := &patron{address: strings.TrimPrefix(p.url, "http://")}
			for told := false; ; {
				late := draining.Load()
				more, err := c.ask()
				if err != nil {
					t.Error(err)
				}
				switch {
				case !more:
					return
				case !late:
					before.Add(1)
				case !told:
					told = true
					meanwhile.Add(1)
				}
			}
		})
	}
	eventually(t, "the clients ask", func() (string, bool) { return "", before.Load() > 2000 })
	if status, body := get(p.url + "/ready"); status != http.StatusOK || !strings.Contains(body, `"draining":false`) {
		t.Errorf("before: %d %s", status, body)
	}
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "the server drains", func() (string, bool) {
		status, body := get(p.url + "/ready")
		return body, status == http.StatusServiceUnavailable && strings.Contains(body, `"draining":true`)
	})
	draining.Store(true)
	if status, body := get(p.url + "/health"); status != http.StatusOK {
		t.Errorf("meanwhile: %d %s", status, body)
	}
	eventually(t, "clients without an answer while the server drains", func() (string, bool) {
		n := meanwhile.Load()
		return fmt.Sprint(patrons - n), n == patrons
	})
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM)) // the drain is over, however slow the clients were
	clients.Wait()
	must.Succeed(t, p.cmd.Wait())
}

// A drain takes as long as the setting says, and ends without a further signal.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	const drain = 200 * time.Millisecond
	p := drainingProcess(t, drain.String())
	began := time.Now()
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	must.Succeed(t, p.cmd.Wait())
	if took := time.Since(began); took < drain {
		t.Errorf("the server ends after %s, and should drain for %s", took, drain)
	}
}

// A second signal does not wait.
func TestDrainIsCutShort(t *testing.T) {
	t.Parallel()
	p := drainingProcess(t, "10m")
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "the server drains", func() (string, bool) {
		status, body := get(p.url + "/ready")
		return body, status == http.StatusServiceUnavailable
	})
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		must.Succeed(t, err)
	case <-time.After(4 * time.Minute):
		t.Error("the server goes on")
	}
}
