// Package demo runs servers in processes of their own and lets simulated fleets work with them: one
// server, several that share a store, and the example router next to policies that know no cache.
package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/lab/sim"
)

// Program returns a command that runs the server's program with the given arguments.
type Program func(args ...string) *exec.Cmd

// TraceBlock is the block size for traces, whose prompts are long: with it an engine's default
// capacity is a million tokens, about what a large node keeps on its devices.
const TraceBlock = 128

// Server is a server in a process of its own.
type Server struct {
	URL       string
	program   Program
	process   *exec.Cmd
	ended     chan struct{} // closed when the process has ended
	end       error         // of the process, after that
	file, dir string        // configuration, and where it lies
	errs      io.Writer
}

// sources is how many ranks the fleet has. A server with snapshots is ready once all are
// synced.
const sources = 12

// ghostBytes is index.ghost_bytes of the server. The fleet evicts enough to fill them within the first
// half of the run, so that the demo shows too what the server answers once it has forgotten names.
const ghostBytes = "32MiB"

// Start runs the serve command of a program on a free loopback port, with
// warnings on errs, and waits until it answers. It writes snapshots at an interval, if that is
// not 0.
func Start(ctx context.Context, server Program, faults bool, snapshots time.Duration, errs io.Writer) (*Server, error) {
	text, synced := "", sources
	if faults {
		synced = 1 // a disturbed engine may have dropped what a source needs, until it clears its cache
	}
	return Launch(ctx, server, errs, func(dir, _ string) string {
		if snapshots > 0 {
			text += fmt.Sprintf("snapshot: {dir: %q, interval: %s}\nready: {min_sources: %d}\n", filepath.Join(dir, "snapshots"), snapshots,
				synced)
		}
		return text
	})
}

// Launch starts a server. further returns its other settings, which depend on its folder and its address.
func Launch(ctx context.Context, server Program, errs io.Writer, further func(dir, address string) string) (*Server, error) {
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conductor-demo")
	if err != nil {
		return nil, err
	}
	// A file of its own keeps the demo apart from the user's settings.
	file := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("listeners: [{address: %q, dialect: conductor}]\nlog: {level: warn, format: console}\n", address)
	text += "index: {ghost_bytes: " + ghostBytes + "}\n"
	text += "shutdown: {drain: 0s}\n" + further(dir, address)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + address, program: server, file: file, dir: dir, errs: errs}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// apart starts a process in a group of its own, so that Ctrl-C does not reach it: the demo stops its
// processes itself, after the fleet has unregistered.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// start starts the process, and waits until it answers.
func (s *Server) start(ctx context.Context) error {
	s.process = s.program("serve", "--config", s.file)
	if s.process.Env == nil {
		s.process.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONDUCTOR_") })
	}
	s.process.Stderr = s.errs
	s.process.SysProcAttr = apart()
	if err := s.process.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		s.end = s.process.Wait()
		close(ended)
	}()
	if err := s.awaitHealth(ctx); err != nil {
		s.Stop()
		return err
	}
	return nil
}

// PID is the id of the process.
func (s *Server) PID() int { return s.process.Process.Pid }

// Restarts returns a schedule that kills and restarts the server that many times within a duration.
func (s *Server) Restarts(times int, within time.Duration) sim.Restarts {
	return sim.Restarts{Times: times, Every: within / time.Duration(times+1), Restart: s.Restart}
}

// Restart kills the process and starts it again.
func (s *Server) Restart(ctx context.Context) (down sim.Downtime, err error) {
	began := time.Now()
	if err := s.process.Process.Kill(); err != nil {
		return down, err
	}
	<-s.ended
	if err := s.start(ctx); err != nil {
		return down, err
	}
	down.Answers = time.Since(began)
	err = s.Await(ctx, "/ready")
	down.Ready = time.Since(began)
	down.Blocks = s.loadedBlocks()
	return down, err
}

// loadedBlocks returns the blocks of the snapshot that the server began with.
func (s *Server) loadedBlocks() int { return int(s.metric("conductor_snapshot_loaded_blocks")) }

// Ghosts says how full the memory of blocks that have left is, and what that cost.
func (s *Server) Ghosts() string {
	const mib = 1 << 20
	return fmt.Sprintf("memory of blocks that have left: %.0f of %s; %.0f blocks came by the name of one that was forgotten",
		s.metric("conductor_ghost_bytes")/mib, ghostBytes,
		s.metric(`conductor_fleet_dropped_total{reason="lost_name"}`))
}

// metric returns a metric of the server, 0 if it does not answer or has no such metric.
func (s *Server) metric(name string) float64 {
	resp, err := http.Get(s.URL + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, _ := strconv.ParseFloat(text, 64)
			return value
		}
	}
	return 0
}

func (s *Server) awaitHealth(ctx context.Context) error { return s.Await(ctx, "/health") }

// patience is how long the demo waits for its server. A source pauses up to 30 s between
// attempts to replay.
const patience = time.Minute

// Await waits until a path is answered with 200.
func (s *Server) Await(ctx context.Context, path string) error {
	last := errors.New("no attempt was made")
	for end := time.Now().Add(patience); time.Now().Before(end); {
		resp, err := http.Get(s.URL + path)
		if last = err; err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			last = fmt.Errorf("it answers %s: %s", resp.Status, body)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return errors.Join(fmt.Errorf("the server at %s has ended", s.URL), s.end)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("the server is not well at %s%s: %w", s.URL, path, last)
}

// Stop ends the server and reports whether it stopped cleanly.
func (s *Server) Stop() error {
	defer os.RemoveAll(s.dir)
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if <-s.ended; s.end != nil {
		return fmt.Errorf("the server did not stop cleanly: %w", s.end)
	}
	return nil
}
