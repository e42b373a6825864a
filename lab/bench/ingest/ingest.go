// Package ingest measures the way of events from a socket into the index: real
// publishers in another process, real connections, a real Conductor.
//
//	publishing process                     this process
//	one PUB per source ==== loopback ====> zmq -> stream -> wire -> conductor -> index
//	        ^                                                          |
//	        +------------- batches applied, by pipe -------------------+
//
// A publisher knows no back-pressure: its socket drops the batches that it cannot queue.
// So the publishing process keeps a bounded number of batches under way. The pipe carries
// the number of applied batches. That finds the highest rate without losses. Then the
// process offers half of that rate without looking, and the bench takes the lag: from the
// publisher's clock, which is this machine's, to the decoding of the batch.
package ingest

import (
	"encoding/binary"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/lab/harness"
)

// Config describes the load and the phases.
type Config struct {
	Load
	Rate     float64       // batches/s of one source; 0 finds the highest, then takes the lag at half of it
	Duration time.Duration // of each phase
	Procs    int           // processors of this process, 0 for as it is
	// Profile takes a CPU profile of this process in the first phase, if set.
	Profile io.Writer
	// Publisher starts the publishing process, which calls Publish.
	Publisher func() *exec.Cmd
	Progress  harness.Progress
}

// Report is the result. A block that is stored counts, and one that is removed.
type Report struct {
	Sources         int     `json:"sources"`
	BlocksPerSec    float64 `json:"blocks_per_sec"`
	StoredPerSec    float64 `json:"stored_blocks_per_sec"`
	BatchesPerSec   float64 `json:"batches_per_sec"`
	BytesPerSec     float64 `json:"bytes_per_sec"`
	AllocsPerBlock  float64 `json:"allocs_per_block"`
	LagRate         float64 `json:"lag_blocks_per_sec"` // offered while the lag was taken
	LagP50Ms        float64 `json:"lag_p50_ms"`
	LagP99Ms        float64 `json:"lag_p99_ms"`
	LagMaxMs        float64 `json:"lag_max_ms"`
	BatchesLost     uint64  `json:"batches_lost"`
	CPUCores        float64 `json:"cpu_cores"` // of this process, in the first phase
	PublisherCores  float64 `json:"publisher_cpu_cores"`
	PeakRSSBytes    int64   `json:"peak_rss_bytes"` // of this process
	IndexBytes      int     `json:"index_bytes"`
	Unsynced        int     `json:"sources_not_synced"`
	DurationSeconds float64 `json:"duration_seconds"`
}

// Table writes it for people.
func (r *Report) Table(w io.Writer) {
	fmt.Fprintf(w, "%d sources: %.2f M blocks/s (%.2f M of them stored), %.0f batches/s, %.0f MB/s, %.3f allocations a block, "+
		"%.2f cores (publisher %.2f)\n", r.Sources, r.BlocksPerSec/1e6, r.StoredPerSec/1e6, r.BatchesPerSec, r.BytesPerSec/1e6,
		r.AllocsPerBlock, r.CPUCores, r.PublisherCores)
	fmt.Fprintf(w, "lag at %.2f M blocks/s: p50 %.2f ms, p99 %.2f ms, most %.1f ms\n", r.LagRate/1e6, r.LagP50Ms, r.LagP99Ms, r.LagMaxMs)
	fmt.Fprintf(w, "lost %d batches, %d sources not synced, peak memory %.0f MB\n", r.BatchesLost, r.Unsynced, float64(r.PeakRSSBytes)/1e6)
}

func (c *Config) blocksPerBatch() float64 {
	if c.Clear {
		return float64(c.Blocks)
	}
	return 2 * float64(c.Blocks)
}

// Window is how many batches of a source may be under way: a quarter of its queue.
const Window = 4096

// Run measures. Lost batches are in the report, not an error.
func Run(c Config) (*Report, error) {
	if c.Sources < 1 || c.Blocks < 1 || c.BlockSize < 1 || c.Duration <= 0 || c.Sources > 1<<16 || c.Blocks > 1<<16 {
		return nil, harness.Mistakef("sources, blocks, block size and duration must be above zero, sources and blocks at most %d", 1<<16)
	}
	if c.Procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.Procs))
	}
	r := &Report{Sources: c.Sources, DurationSeconds: c.Duration.Seconds()}
	perSource := c.Rate
	if perSource == 0 {
		c.Progress.Say("as fast as it goes, %v", c.Duration)
		if c.Profile != nil {
			if err := pprof.StartCPUProfile(c.Profile); err != nil {
				return nil, err
			}
			defer pprof.StopCPUProfile()
		}
		fast, err := c.runPhase(0)
		if err != nil {
			return nil, err
		}
		if c.Profile != nil {
			pprof.StopCPUProfile()
		}
		fast.reportRates(r, &c)
		perSource = r.BatchesPerSec / 2 / float64(c.Sources)
	}
	c.Progress.Say("lag at %.0f batches/s, %v", perSource*float64(c.Sources), c.Duration)
	slow, err := c.runPhase(perSource)
	if err != nil {
		return nil, err
	}
	if c.Rate > 0 {
		slow.reportRates(r, &c)
	}
	slow.reportLags(r, &c)
	r.PeakRSSBytes = harness.Peak()
	return r, nil
}

// phase is one run at one rate.
type phase struct {
	counters         // of the measured time
	took             time.Duration
	lost             uint64
	unsynced         int
	index            int
	applied, payload atomic.Uint64

	mu   sync.Mutex // guards lags while it runs
	lags harness.Latencies
}

// counters are readings since the processes began.
type counters struct {
	batches, bytes, allocs uint64
	cpu, theirs            time.Duration // of this process and of the publishing one
}

// readCounters returns the counters of now.
func (p *phase) readCounters(publishing *harness.Process) counters {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return counters{p.applied.Load(), p.payload.Load(), m.Mallocs, harness.CPU(), publishing.CPU()}
}

// runPhase runs both processes at a rate of each source, 0 for the highest.
func (c *Config) runPhase(perSource float64) (*phase, error) {
	p := &phase{}
	publishing, ports, err := StartPublishing(c.Publisher(), c.Sources)
	if err != nil {
		return nil, err
	}
	defer publishing.Stop()

	k := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{
		Transport: zmq.Transport{}, Decode: p.decodeTimed,
	}})
	defer k.Close()
	for i, port := range ports {
		err := k.Register(registration.Registration{
			Endpoint: "tcp://127.0.0.1:" + port, Type: "vLLM", Model: "bench", Instance: strconv.Itoa(i), BlockSize: c.BlockSize,
		}, ingest.RegisterOptions{})
		if err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(publishing, "%g\n", perSource*float64(c.Sources))
	if err := p.measureWindow(c, k, publishing); err != nil {
		return nil, err
	}
	return p, nil
}

// StartPublishing starts a publishing process and returns the ports of its sources.
func StartPublishing(cmd *exec.Cmd, sources int) (p *harness.Process, ports []string, err error) {
	if p, err = harness.Start("publishing", cmd); err != nil {
		return nil, nil, err
	}
	line, err := p.Line()
	if ports = strings.Fields(string(line)); err == nil && len(ports) != sources {
		err = fmt.Errorf("the publishing process has %d sources, want %d", len(ports), sources)
	}
	if err != nil {
		p.Stop()
		return nil, nil, err
	}
	return p, ports, nil
}

// patience is how long the first batch of a source may take before it is measured all the same.
const patience = time.Minute

// measureWindow lets it run warm, then looks at the counters over Duration.
func (p *phase) measureWindow(c *Config, k *conductor.Conductor, publishing *harness.Process) error {
	warm := min(c.Duration/4, 2*time.Second)
	begun, measuring := time.Now(), false
	first := begun
	var start counters
	acks := make([]byte, 8*c.Sources)
	// Watermarks of a thousand sources are not read a thousand times a second.
	tick := time.NewTicker(time.Duration(1+c.Sources/50) * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		late := false
		for i, seq := range k.Watermarks() {
			binary.LittleEndian.PutUint64(acks[8*i:], seq)
			late = late || seq == 0
		}
		if _, err := publishing.Write(acks); err != nil {
			return fmt.Errorf("the publishing process is gone: %w", err)
		}
		if late && !measuring && time.Since(first) < patience {
			begun = time.Now()
		}
		switch passed := time.Since(begun); {
		case !measuring && passed >= warm:
			measuring, begun = true, time.Now()
			start = p.readCounters(publishing)
			p.mu.Lock()
			p.lags.Reset()
			p.mu.Unlock()
		case measuring && passed >= c.Duration:
			p.took = passed
			end := p.readCounters(publishing)
			p.counters = counters{end.batches - start.batches, end.bytes - start.bytes, end.allocs - start.allocs, end.cpu - start.cpu,
				end.theirs - start.theirs}
			for _, s := range k.Services() {
				p.lost += s.Gaps
				if s.State != stream.Synced {
					p.unsynced++
					c.Progress.Say("source %s is %s %s at %v: %s", s.Key(), s.State, s.Reason, s.Age, s.LastError)
				}
			}
			p.index = k.Meter().IndexBytes()
			return nil
		}
	}
	return nil
}

// decodeTimed is wire.Decode, and takes the time.
func (p *phase) decodeTimed(payload []byte) (events.Batch, error) {
	b, err := wire.Decode(payload, wire.DefaultLimits)
	p.payload.Add(uint64(len(payload)))
	if p.applied.Add(1)%16 == 0 {
		lag := time.Duration(float64(time.Now().UnixNano()) - b.Time*1e9)
		p.mu.Lock()
		p.lags.Add(lag)
		p.mu.Unlock()
	}
	return b, err
}

func (p *phase) reportRates(r *Report, c *Config) {
	s := p.took.Seconds()
	r.BatchesPerSec = float64(p.batches) / s
	r.StoredPerSec = r.BatchesPerSec * float64(c.Blocks)
	r.BlocksPerSec = r.BatchesPerSec * c.blocksPerBatch()
	r.BytesPerSec = float64(p.bytes) / s
	r.AllocsPerBlock = float64(p.allocs) / float64(max(p.batches, 1)) / c.blocksPerBatch()
	r.CPUCores, r.PublisherCores = p.cpu.Seconds()/s, p.theirs.Seconds()/s
	r.BatchesLost += p.lost
}

func (p *phase) reportLags(r *Report, c *Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ms := func(percent float64) float64 { return float64(p.lags.At(percent)) / 1e6 }
	r.LagRate = float64(p.batches) / p.took.Seconds() * c.blocksPerBatch()
	r.LagP50Ms, r.LagP99Ms, r.LagMaxMs = ms(50), ms(99), ms(100)
	r.BatchesLost += p.lost
	r.Unsynced, r.IndexBytes = p.unsynced, p.index
}
