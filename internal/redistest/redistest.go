// Package redistest starts redis-server, or valkey-server, in processes of their own: one, a cluster, or one
// with a replica and Sentinels. Servers from Redis 6.2 and from Valkey 7.2 understand its settings and commands.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// Server is a server of a test, which ends with the test.
type Server struct {
	t      testing.TB
	Addr   string // host:port
	Front  string // where others of its group find it: Addr, or what stands in front of it
	dir    string
	binary string
	args   []string
	tls    bool // it takes TLS alone
	cmd    *exec.Cmd
	ended  chan struct{} // closed once cmd has ended
}

// URL is where the server is, as settings write it.
func (s *Server) URL() string {
	if s.tls {
		return "rediss://" + s.Addr
	}
	return "redis://" + s.Addr
}

// Binary returns the path of the server: STORE_SERVER if it is set, else valkey-server or redis-server.
// Without one, the test is skipped, or fails where all peers are required.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("STORE_SERVER"); path != "" {
		path, err := exec.LookPath(path)
		must.Succeed(t, err)
		return path
	}
	all := installed()
	if len(all) == 0 {
		must.Skip(t, "neither valkey-server nor redis-server is installed")
	}
	return all[0]
}

// installed returns the paths of the servers that are installed.
func installed() (all []string) {
	for _, name := range []string{"valkey-server", "redis-server"} {
		if path, err := exec.LookPath(name); err == nil {
			all = append(all, path)
		}
	}
	return all
}

// Start starts a server on a free port. Further arguments are its settings, as its command line
// takes them.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, freeAddr(t), nil)
	s.start(args...)
	return s
}

// StartTLS starts a server that takes TLS alone, and clients with a certificate of the authority ca.
// Servers may be built without TLS: if Binary is, an installed one is taken. Without any, the test is
// skipped as by Binary.
func StartTLS(t testing.TB, cert, key, ca string, args ...string) *Server {
	t.Helper()
	s := newServer(t, freeAddr(t), nil)
	_, port, _ := net.SplitHostPort(s.Addr)
	s.args = append(s.args, "--port", "0", "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca)
	s.args, s.tls = append(s.args, args...), true
	t.Cleanup(s.Kill)
	var all []string
	for _, s.binary = range append([]string{s.binary}, installed()...) {
		err := s.launch()
		if err == nil {
			return s
		}
		all = append(all, err.Error())
	}
	must.Skip(t, "no server has TLS: "+strings.Join(all, "; "))
	return nil
}

// newServer returns a server that start starts at an address.
func newServer(t testing.TB, addr string, front Front) *Server {
	t.Helper()
	s := &Server{t: t, Addr: addr, dir: t.TempDir(), binary: Binary(t)}
	s.Front = s.Addr
	if front != nil {
		s.Front = front(s.Addr)
	}
	host, port, _ := net.SplitHostPort(s.Addr)
	s.args = []string{"--bind", host, "--port", port, "--dir", s.dir, "--save", "", "--appendonly", "no"}
	return s
}

// start runs a server with further settings until the test ends.
func (s *Server) start(args ...string) {
	s.t.Helper()
	s.args = append(s.args, args...)
	s.Run()
	s.t.Cleanup(s.Kill)
}

// File writes a file of a test, and returns its name.
func File(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	must.Succeed(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// freeAddr returns an address that no server has.
func freeAddr(t testing.TB) string {
	t.Helper()
	addr, err := freeport.Address()
	must.Succeed(t, err)
	return addr
}

// Run starts the process, and returns once it answers.
func (s *Server) Run() {
	s.t.Helper()
	must.Succeed(s.t, s.launch())
}

// launch is Run with an error if the process ends.
func (s *Server) launch() error {
	s.cmd = exec.Command(s.binary, s.args...)
	var out strings.Builder
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		cmd.Wait()
		close(ended)
	}(s.cmd, s.ended)
	deadline := time.After(2 * time.Minute)
	for !s.answers() {
		select {
		case <-time.After(10 * time.Millisecond):
			continue
		case <-s.ended:
		case <-deadline:
		}
		s.Kill()
		return fmt.Errorf("%s does not answer: %s", s.binary, out.String())
	}
	return nil
}

// answers reports whether the server is there.
func (s *Server) answers() bool {
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		return false
	}
	defer c.Close()
	if s.tls {
		return true // it listens once it has its certificate
	}
	fmt.Fprint(c, "PING\r\n")
	n, _ := c.Read(make([]byte, 64))
	return n > 0 // also -NOAUTH: it answers
}

// Pid is the id of the process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Pause stops the process where it is, until Continue.
func (s *Server) Pause() { must.Succeed(s.t, s.cmd.Process.Signal(syscall.SIGSTOP)) }

// Continue lets a paused process go on.
func (s *Server) Continue() { must.Succeed(s.t, s.cmd.Process.Signal(syscall.SIGCONT)) }

// Kill ends the process, with all that the server has in memory.
func (s *Server) Kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// Empty forgets all that the server has in memory.
func (s *Server) Empty() {
	s.t.Helper()
	must.Succeed(s.t, s.client().FlushAll(s.t.Context()).Err())
}
