package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	"example.com/conductor/internal/request"
)

// Server is a serving process.
type Server struct {
	URL   string
	cmd   *exec.Cmd
	began time.Time
	Logs  fmt.Stringer  // the end of its log
	gone  chan struct{} // closed when the process has ended
}

// patience is how long a server may take for anything.
const patience = 5 * time.Minute

// Serve starts a server that will answer at a URL.
func Serve(cmd *exec.Cmd, url string) (*Server, error) {
	logs := new(tail)
	s := &Server{URL: url, cmd: cmd, Logs: logs, gone: make(chan struct{})}
	cmd.Stderr = logs
	s.began = time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the serving process: %w", err)
	}
	go func() { cmd.Wait(); close(s.gone) }()
	return s, nil
}

// Kill ends the process at once.
func (s *Server) Kill() {
	s.cmd.Process.Kill()
	<-s.gone
}

// CPU returns the processor time of the process so far, 0 where the system does not tell.
func (s *Server) CPU() time.Duration { return cpuOf(s.cmd.Process.Pid) }

// Peak returns the peak of the process's resident memory in bytes, 0 where the system does not tell.
func (s *Server) Peak() (bytes int64) {
	fmt.Sscan(status(strconv.Itoa(s.cmd.Process.Pid), "VmHWM"), &bytes)
	return bytes << 10
}

// RSS returns the resident memory of the process; 0 where the system does not tell.
func (s *Server) RSS() (bytes int64) {
	fmt.Sscan(status(strconv.Itoa(s.cmd.Process.Pid), "VmRSS"), &bytes)
	return bytes << 10
}

// Pin keeps all threads of the process on the processors of a list, as Pin does those of this one.
func (s *Server) Pin(list string) error { return pin(s.cmd.Process.Pid, list) }

// Get returns the body of an answer with status 200.
func (s *Server) Get(path string) ([]byte, error) {
	status, body, err := request.Do(context.Background(), http.DefaultClient, http.MethodGet, s.URL+path, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, status, body)
	}
	return body, err
}

// Until asks until there is no error. Between two questions it waits for pause, or longer so that the questions take at
// most a fifth of the time: answers about a large fleet take long.
func (s *Server) Until(pause time.Duration, ask func() error) error {
	for end := time.Now().Add(patience); ; {
		asked := time.Now()
		err := ask()
		if err == nil {
			return nil
		}
		took := time.Since(asked)
		select {
		case <-s.gone:
			return fmt.Errorf("the serving process has ended: %s", s.Logs)
		case <-time.After(max(pause, 4*took)):
		}
		if time.Now().After(end) {
			return fmt.Errorf("the serving process takes longer than %v: %w", patience, err)
		}
	}
}

// Ready waits until the server is ready, and returns how long that took from its start.
func (s *Server) Ready() (time.Duration, error) {
	err := s.Until(2*time.Millisecond, func() error { _, err := s.Get("/ready"); return err })
	return time.Since(s.began), err
}

// Metric returns a metric without labels.
func (s *Server) Metric(name string) (float64, error) {
	text, err := s.Get("/metrics")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("the server has no metric %s", name)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// Mark is what a source holds behind a batch.
type Mark struct {
	Seq    uint64 `json:"seq"`
	Blocks int    `json:"blocks"`
	Digest string `json:"digest"`
}

// Marks returns what the sources hold, by instance.
func (s *Server) Marks() (map[string]Mark, error) {
	text, err := s.Get("/admin/digest")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Sources []struct {
			InstanceID string `json:"instance_id"`
			Mark       *Mark
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("cannot read digests: %w", err)
	}
	out := make(map[string]Mark)
	for _, source := range answer.Sources {
		if source.Mark != nil {
			out[source.InstanceID] = *source.Mark
		}
	}
	return out, nil
}

// Applied returns how many batches of each instance the server has applied.
func (s *Server) Applied(instances int) ([]uint64, error) {
	text, err := s.Get("/services")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Services []struct {
			InstanceID string
			LastSeq    *uint64
		} `json:"services"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("cannot read /services: %w", err)
	}
	out := make([]uint64, instances)
	for _, row := range answer.Services {
		i, err := strconv.Atoi(row.InstanceID)
		if err != nil || i < 0 || i >= instances {
			return nil, fmt.Errorf("the server follows another source: %q", row.InstanceID)
		}
		if row.LastSeq != nil {
			out[i] = *row.LastSeq + 1
		}
	}
	return out, nil
}

// tail keeps the end of a log.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailBytes):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
