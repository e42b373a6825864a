package query

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/config"
	"example.com/conductor/internal/freeport"
	ask "example.com/conductor/internal/request"
	"example.com/conductor/lab/harness"
)

// served is the measured server: "serve" in a process of its own, on processors of its own.
type served struct {
	*harness.Server
	dir        string // of its configuration
	Address    string
	GRPC       string
	IndexBytes int
	Preload    float64 // seconds
	Pinned     string  // why the client has no processors of its own, "" if it has

	serverCores, clientCores string // as taskset lists them
	clients                  int    // cores of the client

	churn   *churning // nil if nothing is published while it is measured
	changes *changing // nil if no registration changes while it is measured
	silence func()    // closes the publishers
}

// startServer runs the server until it has all blocks.
func startServer(ctx context.Context, c *Config) (s *served, err error) {
	var addresses [2]string
	for i := range addresses {
		if addresses[i], err = freeport.Address(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "conductor-bench")
	if err != nil {
		return nil, err
	}
	s = &served{clients: c.Cores, dir: dir, Address: addresses[0], GRPC: addresses[1], silence: func() {}}
	defer func() {
		if err != nil {
			s.stopServer()
		}
	}()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, c.settingsFile(filepath.Join(dir, "snapshots"), addresses), 0o600); err != nil {
		return nil, err
	}
	cmd := c.Server(file)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CONDUCTOR_")
	}), "GOMAXPROCS="+strconv.Itoa(c.Cores))
	if s.Server, err = harness.Serve(cmd, "http://"+s.Address); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, s.Kill)
	if _, err := s.Ready(); err != nil {
		return nil, err
	}
	server, rest, err := harness.SplitCores(c.Cores)
	switch {
	case err != nil:
		s.Pinned = err.Error()
	case rest == "":
		s.Pinned = "there are no processors left for the client"
		err = s.Pin(server)
	default:
		others := strings.Split(rest, ",")
		others = others[max(0, len(others)-c.Cores):]
		s.serverCores, s.clientCores, s.clients = server, strings.Join(others, ","), len(others)
		err = s.Pin(server)
	}
	if err != nil {
		s.Pinned = err.Error()
	}
	c.Progress.Say("loading %d blocks held by %d of %d instances each", c.families()*c.chainLength(), c.Holders, c.Workers)
	begun := time.Now()
	if c.Batches > 0 {
		if s.churn, err = startChurn(c.Publishers(Churn{c.Load, s.URL, c.Batches})); err != nil {
			return nil, err
		}
		s.silence = s.churn.Stop
	} else if s.silence, err = c.preloadBlocks(s); err != nil {
		s.silence = func() {}
		return nil, err
	}
	s.Preload = time.Since(begun).Seconds()
	if s.IndexBytes, err = s.indexBytes(); err != nil {
		return nil, err
	}
	return s, nil
}

// settingsFile returns the defaults, except for the addresses and what the load asks for.
func (c *Config) settingsFile(dir string, addresses [2]string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "listeners: [{address: %q, dialect: %s}, {address: %q, dialect: %s}]\n", addresses[0], config.Conductor, addresses[1],
		config.GRPC)
	fmt.Fprintf(&b, "log: {level: error, slow_query: %s}\nshutdown: {drain: 0s}\n", c.Slow)
	fmt.Fprintf(&b, "limits: {max_sources: %d}\n", max(config.Default().Limits.MaxSources, c.Workers+1))
	switch {
	case c.Snapshot:
		fmt.Fprintf(&b, "snapshot: {dir: %q, interval: %s}\n", dir, c.Duration/3)
	case c.Changes > 0:
		fmt.Fprintf(&b, "snapshot: {dir: %q}\n", dir)
	}
	if c.Traces > 0 {
		fmt.Fprintf(&b, "tracing: {endpoint: %q, sample: %g}\n", c.Collector, c.Traces)
	}
	return b.Bytes()
}

func (s *served) stopServer() {
	s.silence()
	if s.Server != nil {
		s.Kill()
	}
	os.RemoveAll(s.dir)
}

// followEngine implements follower.
func (s *served) followEngine(endpoint, instance string, blockSize int) error {
	return s.changeSource(context.Background(), "/register", endpoint, instance, blockSize, 0)
}

// changeSource registers or unregisters a rank of an instance, as path says.
func (s *served) changeSource(ctx context.Context, path, endpoint, instance string, blockSize, rank int) error {
	body, err := json.Marshal(map[string]any{
		"endpoint": endpoint, "type": "vLLM", "modelname": model, "instance_id": instance, "block_size": blockSize, "dp_rank": rank,
	})
	if err != nil {
		return err
	}
	status, text, err := ask.Do(ctx, http.DefaultClient, http.MethodPost, s.URL+path, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, status, text)
	}
	return err
}

// sourceRow is a source of GET /services.
type sourceRow struct {
	InstanceID, State, Reason, LastError string
	LastSeq                              *uint64
	Gaps                                 uint64
}

// listSources returns the sources, sorted as instances are.
func (s *served) listSources() ([]sourceRow, error) {
	text, err := s.Get("/services")
	if err != nil {
		return nil, err
	}
	var answer struct{ Services []sourceRow }
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("cannot read /services: %w", err)
	}
	slices.SortFunc(answer.Services, func(a, b sourceRow) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return answer.Services, nil
}

// readWatermarks implements follower.
func (s *served) readWatermarks(applied []uint64) error {
	rows, err := s.listSources()
	for i := range rows {
		if rows[i].LastSeq != nil && i < len(applied) {
			applied[i] = *rows[i].LastSeq + 1
		}
	}
	return err
}

// checkLosses implements follower.
func (s *served) checkLosses() error {
	rows, err := s.listSources()
	for _, r := range rows {
		if r.Gaps > 0 || r.State == "failed" {
			return fmt.Errorf("source %s is %s %s: %s", r.InstanceID, r.State, r.Reason, r.LastError)
		}
	}
	return err
}

// indexBytes returns the size of the index.
func (s *served) indexBytes() (int, error) {
	n, err := s.sumMetrics("conductor_index_bytes")
	return int(n["conductor_index_bytes"]), err
}

// sumMetrics returns metrics by name, each the sum of its series.
func (s *served) sumMetrics(names ...string) (map[string]float64, error) {
	text, err := s.Get("/metrics")
	if err != nil {
		return nil, err
	}
	sums := make(map[string]float64)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		at := strings.LastIndexByte(lines.Text(), ' ')
		name, _, _ := strings.Cut(lines.Text()[:max(at, 0)], "{")
		if slices.Contains(names, name) {
			n, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
			if err != nil {
				return nil, fmt.Errorf("the server has %q: %w", lines.Text(), err)
			}
			sums[name] += n
		}
	}
	for _, name := range names {
		if _, there := sums[name]; !there {
			return nil, fmt.Errorf("the server has no metric %s", name)
		}
	}
	return sums, nil
}

// readAllocated reads what the server has allocated so far. Small objects that the runtime packs together
// count one by one.
func (s *served) readAllocated() (objects, size uint64, err error) {
	const mallocs, total = "go_memstats_mallocs_total", "go_memstats_alloc_bytes_total"
	n, err := s.sumMetrics(mallocs, total)
	return uint64(n[mallocs]), uint64(n[total]), err
}

// beginWindow implements meter: reading the counters comes before the window.
func (s *served) beginWindow() (u usage, err error) {
	u.Objects, u.Bytes, err = s.readAllocated()
	u.CPU = s.CPU()
	return u, err
}

// endWindow implements meter: reading the counters comes after the window. Between the counters of both ends
// lies one reading of them, whose own allocations a second reading tells.
func (s *served) endWindow() (u usage, err error) {
	u.CPU, u.RSS = s.CPU(), s.Peak()
	objects, size, err := s.readAllocated()
	if err != nil {
		return u, err
	}
	again, larger, err := s.readAllocated()
	u.Objects, u.Bytes = objects-(again-objects), size-(larger-size)
	return u, err
}

// recordProfile writes a CPU profile of the server over some seconds, or an execution trace, to a file. The function that
// it returns waits for it.
func (s *served) recordProfile(kind, file string, over time.Duration) (wait func() error) {
	const longest = 60 // that the server takes
	seconds := min(longest, int(over/time.Second)+1)
	done := make(chan error, 1)
	go func() {
		status, answer, err := ask.Do(context.Background(), http.DefaultClient, http.MethodGet,
			fmt.Sprintf("%s/debug/pprof/%s?seconds=%d", s.URL, kind, seconds), nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("the server answers %d: %s", status, answer)
		}
		if err == nil {
			err = os.WriteFile(file, answer, 0o600)
		}
		if err != nil {
			err = fmt.Errorf("cannot take a %s: %w", kind, err)
		}
		done <- err
	}()
	return func() error { return <-done }
}
