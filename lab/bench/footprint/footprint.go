// Package footprint compares the resident memory of a server with its account: a real
// server, real publishers, each in a process of its own.
//
//	publishing process                  serving process
//	one PUB per source ==== loopback ====> conductor serve
//	        ^                                   |
//	        |                                   +-- GET /services: batches applied
//	        +-- acks, by pipe --- this process -+-- GET /metrics: resident memory and its parts
//
// The sources publish until each holds its blocks (loading), go on with a removal for each
// store (churning), and stop (idle).
package footprint

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/internal/request"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// Config describes the load and the phases.
type Config struct {
	Blocks      int // unique blocks that are held
	Holders     int // sources that hold each
	Sources     int // a multiple of Holders
	EventBlocks int // blocks that one event stores
	BlockSize   int // tokens per block
	// Ahead is how many batches a source may be ahead of the slowest one, 0 for a
	// sixteenth of what it holds. Large values flood the server.
	Ahead       int
	Churn, Idle time.Duration

	// Server starts the serving process: "serve" on a free port, with log lines in JSON on
	// standard error. Publisher starts the publishing process; each source holds hold blocks.
	Server    func() *exec.Cmd
	Publisher func(hold int) *exec.Cmd
	Progress  harness.Progress
}

func (c *Config) publishAhead() int {
	if c.Ahead > 0 {
		return c.Ahead
	}
	return max(1, c.blocksPerPublisher()/c.EventBlocks/16)
}

func (c *Config) blocksPerPublisher() int { return c.Blocks / (c.Sources / c.Holders) }

// Sample is the memory of the server at one moment, in bytes.
type Sample struct {
	Phase string           `json:"phase"`
	RSS   int64            `json:"rss_bytes"`
	Parts map[string]int64 `json:"parts"`
}

// overhead are the parts that no state of the Conductor accounts for.
var overhead = map[string]bool{"heap_young": true, "heap_other": true, "heap_free": true, "stacks": true, "runtime": true, "binary": true}

// Account returns the bytes that the Conductor accounts for.
func (s *Sample) Account() (n int64) {
	for part, bytes := range s.Parts {
		if !overhead[part] {
			n += bytes
		}
	}
	return n
}

// Explained is the sum of all parts.
func (s *Sample) Explained() (n int64) {
	for _, bytes := range s.Parts {
		n += bytes
	}
	return n
}

// The target: resident memory is at most 1.4 times the account, and 40 MB.
const (
	targetFactor = 1.4
	targetBytes  = 40e6
)

// Spare is how far the sample is below the target, in bytes; below zero it misses it.
func (s *Sample) Spare() int64 {
	return int64(targetFactor*float64(s.Account())) + targetBytes - s.RSS
}

// Report is the result: for each phase the moment nearest to the target, and its end.
type Report struct {
	Blocks  int      `json:"blocks"`
	Holders int      `json:"holders"`
	Sources int      `json:"sources"`
	Indexed int      `json:"indexed_blocks"` // in the end
	Lost    int      `json:"gaps"`
	Worst   []Sample `json:"worst"`
	End     []Sample `json:"end"`
	Loaded  float64  `json:"load_seconds"`
}

// Phases in their order.
const (
	loading  = "loading"
	churning = "churning"
	idle     = "idle"
)

// idleLooks are the looks without a change after which every batch has been applied.
const idleLooks = 4

// every is the time between two looks at the server.
const every = 250 * time.Millisecond

// run is one run.
type run struct {
	c      *Config
	url    string
	orders io.Writer // of the publishing process
	report *Report
	acks   []byte
	total  uint64 // batches that all sources together are past
}

// Run measures.
func Run(c Config) (*Report, error) {
	if c.Blocks < 1 || c.Holders < 1 || c.Sources < c.Holders || c.Sources%c.Holders != 0 || c.EventBlocks < 1 ||
		c.blocksPerPublisher() < c.EventBlocks {
		return nil, harness.Mistakef("sources must be a multiple of holders, and each needs blocks for one event at least")
	}
	server := c.Server()
	stderr, err := server.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the serving process: %w", err)
	}
	defer server.Wait()
	defer server.Process.Signal(os.Interrupt)
	r := &run{c: &c, report: &Report{Blocks: c.Blocks, Holders: c.Holders, Sources: c.Sources}, acks: make([]byte, 8*c.Sources)}
	if r.url, err = readAddress(stderr); err != nil {
		return nil, err
	}
	publishing, ports, err := ingest.StartPublishing(c.Publisher(c.blocksPerPublisher()), c.Sources)
	if err != nil {
		return nil, err
	}
	defer publishing.Stop()
	r.orders = publishing
	if err := r.registerSources(ports); err != nil {
		return nil, err
	}
	return r.report, r.runPhases()
}

// readAddress returns the URL in the log lines of a server, and keeps on reading them.
func readAddress(stderr io.Reader) (string, error) {
	lines := bufio.NewReader(stderr)
	listening := regexp.MustCompile(`"address":"([^"]+)"`)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("the serving process ends: %s", strings.TrimSpace(line))
		}
		if m := listening.FindStringSubmatch(line); m != nil {
			go io.Copy(io.Discard, lines)
			return "http://" + m[1], nil
		}
	}
}

// registerSources makes the server follow the publishers on these ports.
func (r *run) registerSources(ports []string) error {
	for i, port := range ports {
		body, err := json.Marshal(map[string]any{
			"endpoint": "tcp://127.0.0.1:" + port, "type": "vLLM", "modelname": "bench", "instance_id": instanceName(i),
			"block_size": r.c.BlockSize, "dp_rank": 0,
		})
		if err != nil {
			return err
		}
		if _, err := r.askServer(http.MethodPost, "/register", body); err != nil {
			return err
		}
	}
	return nil
}

// askServer returns the body of the server's answer.
func (r *run) askServer(method, path string, body []byte) ([]byte, error) {
	status, answer, err := request.Do(context.Background(), http.DefaultClient, method, r.url+path, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, status, answer)
	}
	return answer, err
}

func instanceName(source int) string { return fmt.Sprintf("%06d", source) }

// runPhases runs all phases.
func (r *run) runPhases() error {
	if _, err := fmt.Fprintln(r.orders, 0); err != nil {
		return err
	}
	begun := time.Now()
	full := uint64(r.c.blocksPerPublisher() / r.c.EventBlocks)
	r.c.Progress.Say("loading %d blocks, each held by %d sources", r.c.Blocks, r.c.Holders)
	if err := r.followPhase(loading, full, func(applied uint64) bool { return applied >= full }); err != nil {
		return err
	}
	r.report.Loaded = time.Since(begun).Seconds()
	r.c.Progress.Say("churning for %v", r.c.Churn)
	end := time.Now().Add(r.c.Churn)
	if err := r.followPhase(churning, ^uint64(0)>>1, func(uint64) bool { return time.Now().After(end) }); err != nil {
		return err
	}
	r.c.Progress.Say("idle for %v", r.c.Idle)
	end = time.Now().Add(r.c.Idle)
	still, before := 0, uint64(0) // looks without a change; r.total at the last look
	return r.followPhase(idle, 0, func(uint64) bool {
		if still++; r.total != before {
			still, before = 0, r.total
		}
		return still >= idleLooks && time.Now().After(end)
	})
}

// followPhase follows a phase in which each source publishes up to most batches in all, until
// it is over for the slowest one.
func (r *run) followPhase(phase string, most uint64, over func(applied uint64) bool) error {
	t := time.NewTicker(every)
	defer t.Stop()
	var worst, last *Sample
	for n := 0; ; n++ {
		applied, err := r.advanceSources(most)
		if err != nil {
			return err
		}
		done := over(applied)
		if n%4 == 0 || done {
			if last, err = r.takeSample(phase); err != nil {
				return err
			}
			if worst == nil || last.Spare() < worst.Spare() {
				worst = last
			}
		}
		if done {
			r.report.Worst, r.report.End = append(r.report.Worst, *worst), append(r.report.End, *last)
			return nil
		}
		<-t.C
	}
}

// advanceSources lets the sources publish on up to most batches, and returns how many the slowest
// one is past.
func (r *run) advanceSources(most uint64) (least uint64, err error) {
	var services struct {
		Services []struct {
			InstanceID string
			LastSeq    *uint64
			Gaps       int
		} `json:"services"`
	}
	text, err := r.askServer(http.MethodGet, "/services", nil)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, &services); err != nil {
		return 0, fmt.Errorf("cannot read /services: %w", err)
	}
	past := make([]uint64, r.c.Sources)
	r.report.Lost, r.total = 0, 0
	for _, s := range services.Services {
		i, err := strconv.Atoi(s.InstanceID)
		if err != nil || i < 0 || i >= r.c.Sources {
			return 0, fmt.Errorf("the server follows another source: %q", s.InstanceID)
		}
		if s.LastSeq != nil {
			past[i] = *s.LastSeq + 1
			r.total += past[i]
		}
		r.report.Lost += s.Gaps
	}
	if len(services.Services) != r.c.Sources {
		return 0, fmt.Errorf("%d services, want %d", len(services.Services), r.c.Sources)
	}
	least = slices.Min(past)
	most = min(most, least+uint64(r.c.publishAhead()))
	for i, n := range past {
		// A source publishes while fewer than a window of batches are under way.
		binary.LittleEndian.PutUint64(r.acks[8*i:], min(n+ingest.Window, max(most, n))-ingest.Window)
	}
	_, err = r.orders.Write(r.acks)
	return least, err
}

var (
	partLine = regexp.MustCompile(`(?m)^conductor_memory_bytes\{part="([^"]+)"\} (\S+)$`)
	rssLine  = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)
	liveLine = regexp.MustCompile(`(?m)^conductor_index_blocks\{[^}]*\} (\S+)$`)
)

// takeSample takes the memory of the server from its metrics.
func (r *run) takeSample(phase string) (*Sample, error) {
	text, err := r.askServer(http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	s := &Sample{Phase: phase, Parts: make(map[string]int64)}
	number := func(b []byte) int64 {
		f, _ := strconv.ParseFloat(string(b), 64)
		return int64(f)
	}
	for _, m := range partLine.FindAllSubmatch(text, -1) {
		s.Parts[string(m[1])] = number(m[2])
	}
	rss := rssLine.FindSubmatch(text)
	if rss == nil || len(s.Parts) == 0 {
		return nil, errors.New("the server says nothing of its memory")
	}
	s.RSS = number(rss[1])
	if live := liveLine.FindSubmatch(text); live != nil {
		r.report.Indexed = int(number(live[1]))
	}
	return s, nil
}
