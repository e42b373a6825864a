package recovery

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

	"kvconductor/cmd/internal/harness"
)

// server is a serving process.
type server struct {
	url   string
	cmd   *exec.Cmd
	began time.Time
	logs  *tail
	gone  chan struct{} // closed when the process has ended
}

// patience is how long a server may take for anything.
const patience = 5 * time.Minute

// start starts a server that will answer at a URL.
func start(cmd *exec.Cmd, url string) (*server, error) {
	s := &server{url: url, cmd: cmd, logs: new(tail), gone: make(chan struct{})}
	cmd.Stderr = s.logs
	s.began = time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the serving process: %w", err)
	}
	go func() { cmd.Wait(); close(s.gone) }()
	return s, nil
}

// kill ends the process at once.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.gone
}

// ask returns the body of an answer with status 200.
func (s *server) ask(path string) ([]byte, error) {
	status, body, err := harness.Ask(context.Background(), http.DefaultClient, http.MethodGet, s.url+path, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, status, body)
	}
	return body, err
}

// until asks until there is no error.
func (s *server) until(pause time.Duration, ask func() error) error {
	for end := time.Now().Add(patience); ; {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-s.gone:
			return fmt.Errorf("the serving process has ended: %s", s.logs)
		case <-time.After(pause):
		}
		if time.Now().After(end) {
			return fmt.Errorf("the serving process takes longer than %v: %w", patience, err)
		}
	}
}

// ready waits until the server is ready, and returns how long that took from its start.
func (s *server) ready() (time.Duration, error) {
	err := s.until(2*time.Millisecond, func() error { _, err := s.ask("/ready"); return err })
	return time.Since(s.began), err
}

// metric returns a metric without labels.
func (s *server) metric(name string) (float64, error) {
	text, err := s.ask("/metrics")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("the server has no metric %s", name)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// mark is what a source holds behind a batch.
type mark struct {
	Seq    uint64 `json:"seq"`
	Blocks int    `json:"blocks"`
	Digest string `json:"digest"`
}

// marks returns what the sources hold, by instance.
func (s *server) marks() (map[string]mark, error) {
	text, err := s.ask("/admin/digest")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Sources []struct {
			InstanceID string `json:"instance_id"`
			Mark       *mark
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("cannot read digests: %w", err)
	}
	out := make(map[string]mark)
	for _, source := range answer.Sources {
		if source.Mark != nil {
			out[source.InstanceID] = *source.Mark
		}
	}
	return out, nil
}

// applied returns how many batches of each instance the server has applied.
func (s *server) applied(instances int) ([]uint64, error) {
	text, err := s.ask("/services")
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
