package query

import (
	"fmt"
	"io"
	"runtime"

	"example.com/conductor/lab/harness"
)

// Figures are those of one handler.
type Figures struct {
	RequestsPerSec float64 `json:"requests_per_sec"`
	P50            float64 `json:"p50_us"`
	P99            float64 `json:"p99_us"`
	P999           float64 `json:"p999_us"`
	Max            float64 `json:"max_us"`
	ServerCPU      float64 `json:"server_cpu_us_per_request"`
	Allocs         float64 `json:"allocs_per_request"`
	AllocBytes     float64 `json:"alloc_bytes_per_request"`
	ClientCPU      float64 `json:"client_cpu_us_per_request"`
	ServerCores    float64 `json:"server_cores"`
	ClientCores    float64 `json:"client_cores"`
	ServerRSS      int64   `json:"server_peak_rss_bytes"` // the preload's included
	Requests       uint64  `json:"requests"`
	Checked        uint64  `json:"answers_checked"`
	RequestBytes   int     `json:"request_bytes"`
	AnswerBytes    int     `json:"answer_bytes"`
	WorkingSet     int     `json:"working_set_bytes"` // of all requests that are sent in turn
}

// Report is the result with the load that was run.
type Report struct {
	Figures
	// Other is another codec; the ratios are how many times its requests a second, and by how
	// much its server's time is longer.
	Other         *Figures `json:"other,omitempty"`
	OtherCodec    string   `json:"other_codec,omitempty"`
	OtherRatio    float64  `json:"other_ratio,omitempty"`
	OtherCPURatio float64  `json:"other_cpu_ratio,omitempty"`

	Baseline *Figures `json:"baseline,omitempty"`
	Ratio    float64  `json:"baseline_ratio,omitempty"`     // of requests a second
	CPURatio float64  `json:"baseline_cpu_ratio,omitempty"` // of the server's time, which other load on the machine distorts less
	// Reading is a handler that takes the same bodies, reads them once, and sends an
	// answer of the same length; the ratio is how many times its time the server's is.
	Reading      *Figures `json:"reading,omitempty"`
	ReadingRatio float64  `json:"reading_cpu_ratio,omitempty"`

	Expected *Expected `json:"expected,omitempty"` // of Config.Reports
	Paced    *Paced    `json:"paced,omitempty"`    // of Config.Share

	Changes float64 `json:"changes_per_sec,omitempty"` // of registrations, that the server made while it was asked

	Tokens      int     `json:"tokens"`
	BlockSize   int     `json:"block_size"`
	Codec       string  `json:"codec"`
	HTTP2       bool    `json:"http2"`
	Connections int     `json:"connections"`
	Duration    float64 `json:"duration_seconds"`
	Instances   int     `json:"instances"`
	Holders     int     `json:"holders"`
	Hit         float64 `json:"hit"`
	Window      int     `json:"window,omitempty"`
	Blocks      int     `json:"blocks"`
	Memberships int     `json:"memberships"`
	Prompts     int     `json:"prompts"`
	IndexBytes  int     `json:"index_bytes"`
	Preload     float64 `json:"preload_seconds"`
	Cores       string  `json:"cores"` // how the two processes were kept apart
	Machine     string  `json:"machine"`
	Go          string  `json:"go"`
}

func newReport(c *Config, s *served) *Report {
	m := harness.ThisMachine()
	r := &Report{
		Tokens: c.Tokens, BlockSize: c.BlockSize, Codec: c.Codec, OtherCodec: c.Other, HTTP2: c.HTTP2, Connections: c.Connections,
		Duration:  c.Duration.Seconds(),
		Instances: c.Workers, Holders: c.Holders, Hit: c.Hit, Window: c.Window,
		Blocks: c.families() * c.chainLength(), Prompts: c.countPrompts(),
		IndexBytes: s.IndexBytes, Preload: s.Preload, Machine: fmt.Sprintf("%d x %s, %s", runtime.NumCPU(), m.CPU, m.OS), Go: m.Go,
		Cores: fmt.Sprintf("%d for the server and %d for the client by GOMAXPROCS alone: %s", c.Cores, s.clients, s.Pinned),
	}
	r.Memberships = r.Blocks * c.Holders
	if s.Pinned == "" {
		r.Cores = fmt.Sprintf("server on %s, client on %s, by affinity", s.serverCores, s.clientCores)
	}
	return r
}

// computeFigures computes the figures of a side from its counters.
func (w *windowed) computeFigures(f *Figures, k *client) {
	n, seconds := float64(max(w.latencies.Count(), 1)), w.took.Seconds()
	us := func(percent float64) float64 { return float64(w.latencies.At(percent)) / 1e3 }
	*f = Figures{
		RequestsPerSec: float64(w.latencies.Count()) / seconds,
		P50:            us(50), P99: us(99), P999: us(99.9), Max: us(100),
		ServerCPU:   float64(w.server.CPU) / 1e3 / n,
		Allocs:      float64(w.server.Objects) / n,
		AllocBytes:  float64(w.server.Bytes) / n,
		ClientCPU:   float64(w.client) / 1e3 / n,
		ServerCores: w.server.CPU.Seconds() / seconds,
		ClientCores: w.client.Seconds() / seconds,
		ServerRSS:   w.server.RSS,
		Requests:    uint64(w.latencies.Count()),
		Checked:     k.checked.Load(),
		AnswerBytes: int(k.answer.Load()),
	}
	for i := range k.requests {
		f.WorkingSet += len(k.requests[i].whole)
	}
	f.RequestBytes = f.WorkingSet / len(k.requests)
}

// Table writes it for people.
func (r *Report) Table(w io.Writer) {
	transport := "HTTP/1.1"
	switch {
	case isGRPC(r.Codec):
		transport = "gRPC"
	case r.HTTP2:
		transport = "HTTP/2"
	}
	fmt.Fprintf(w, "%d tokens in %s over %s: ", r.Tokens, r.Codec, transport)
	r.Figures.writeTable(w)
	if r.Other != nil {
		fmt.Fprintf(w, "%s: ", r.OtherCodec)
		r.Other.writeTable(w)
		fmt.Fprintf(w, "%.2f times the requests of %s, %.2f times in processor time\n", r.OtherRatio, r.OtherCodec, r.OtherCPURatio)
	}
	if r.Baseline != nil {
		fmt.Fprint(w, "encoding/json: ")
		r.Baseline.writeTable(w)
		fmt.Fprintf(w, "%.2f times the baseline's requests, %.2f times in processor time\n", r.Ratio, r.CPURatio)
	}
	if r.Reading != nil {
		fmt.Fprint(w, "reading alone: ")
		r.Reading.writeTable(w)
		fmt.Fprintf(w, "%.2f times the processor time of reading alone\n", r.ReadingRatio)
	}
	if p := r.Paced; p != nil {
		fmt.Fprintf(w, "at %.0f requests/s, each at its time, with %.0f batches/s: p50 %.0f µs, p99 %.0f µs, p99.9 %.0f µs (%.1f times "+
			"p50), most %.0f µs, the client itself late by %.0f µs at p99.9, server %.1f µs a request; snapshots written: %d, the last "+
			"in %.2f s, with a pause of %.1f ms\n",
			p.Rate, p.Batches, p.P50, p.P99, p.P999, p.Tail, p.Max, p.Late, p.ServerCPU, p.Snapshots, p.Write, 1e3*p.Pause)
	}
	if r.Changes > 0 {
		fmt.Fprintf(w, "meanwhile %.0f changes of registrations a second\n", r.Changes)
	}
	if e := r.Expected; e != nil {
		fmt.Fprintf(w, "%d reports with %d tokens of their own in %.1f s: %.1f MB by the server's account, %.1f MB more resident memory, "+
			"%d allocations of %d bytes each\n",
			e.Reports, e.NewTokens, e.Seconds, float64(e.Bytes)/1e6, float64(e.RSS)/1e6, e.Allocs/max(e.Reports, 1),
			e.AllocBytes/max(e.Reports, 1))
	}
	fmt.Fprintf(w, "%d prompts in turn, %.1f MB; %d instances, %d hold %.0f %% of a prompt; %d blocks, %d memberships, "+
		"index %.0f MB, loaded in %.1f s\n%d connections; cores: %s; %s; %s\n", r.Prompts, float64(r.WorkingSet)/1e6, r.Instances,
		r.Holders, 100*r.Hit, r.Blocks, r.Memberships, float64(r.IndexBytes)/1e6, r.Preload,
		r.Connections, r.Cores, r.Machine, r.Go)
}

func (f *Figures) writeTable(w io.Writer) {
	fmt.Fprintf(w, "%.0f requests/s, p50 %.0f µs, p99 %.0f µs, server %.1f µs and %.1f allocations (%.1f KB) a request, cores: server "+
		"%.2f, client %.2f; %d answers checked\n",
		f.RequestsPerSec, f.P50, f.P99, f.ServerCPU, f.Allocs, f.AllocBytes/1e3, f.ServerCores, f.ClientCores, f.Checked)
}
