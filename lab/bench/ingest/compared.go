package ingest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/lab/bench/streams"
	"example.com/conductor/lab/harness"
)

// Compared publishes a recorded stream to servers of Dynamo's dialect, each started again for each run, in
// turns.
//
//	playing processes                        a server, on processors of its own
//	PUB sockets, at one rate ==== loopback ====> applies
//	        |                                     ^   |
//	        +-- markers sent, by pipe --> bench --+   +--> processor time, memory, /dump
//	                                 asks for markers
//
// A round has two runs of each server: one for the processor time, with a marker behind the last batch of
// each publisher alone, one with many of them for the lag. The lag of a marker is from before it is written
// to its socket until an answer shows it, so it has a query in it, and the time since the query before.
type Compared struct {
	Recorded
	Servers []Contender
	Rounds  int
	Cores   int // processors of the server: the last ones; the playing processes have the others
	// Play returns a command that calls Play.
	Play func(Recorded) *exec.Cmd
	// Profile takes a CPU profile of the first server, which is ours, in a run of its own.
	Profile  io.Writer
	Progress harness.Progress
}

// Contender is a server to compare.
type Contender struct {
	Name string
	// Command returns the command of a server whose Dynamo dialect is at a port of loopback, and ours its
	// profiles at another one.
	Command func(port, profiles string) []string
}

// ComparedReport is the result.
type ComparedReport struct {
	Machine    harness.Machine `json:"machine"`
	Stream     string          `json:"stream"`
	Publishers int             `json:"publishers"`
	Processes  int             `json:"processes"`
	Cores      string          `json:"cores"` // of the server
	Batches    int             `json:"batches"`
	Events     int             `json:"events"`
	Blocks     int             `json:"blocks_held"` // by all publishers at the end
	Bytes      int             `json:"bytes"`
	Rate       float64         `json:"rate"` // 0: as fast as the server reads
	Servers    []*Contended    `json:"servers"`
	// Ratio is the processor time of the last server for a batch in those of the first.
	Ratio float64 `json:"ratio,omitempty"`
}

// Contended are the figures of a server over all rounds. Each round has a run for the processor time and one
// for the lag.
type Contended struct {
	Name   string    `json:"name"`
	Micros float64   `json:"cpu_us_a_batch"` // the median of OfRuns
	OfRuns []float64 `json:"cpu_us_of_runs"` // of each run for the processor time
	// PerSecond is of the last run for the processor time, as is RSS at its end.
	PerSecond float64 `json:"batches_per_sec"`
	LateMs    float64 `json:"late_ms"` // the most that a publisher was late in any run
	// The lags of the markers, and the times of the queries for them, are taken over all runs for the lag
	// together.
	LagP50Ms float64 `json:"lag_p50_ms"`
	LagP99Ms float64 `json:"lag_p99_ms"`
	LagMaxMs float64 `json:"lag_max_ms"`
	Markers  int     `json:"markers"`
	QueryMs  float64 `json:"query_p50_ms"`
	// Missing and Excess are each of the run that had the most.
	Missing int   `json:"blocks_missing"`
	Excess  int   `json:"blocks_in_excess"`
	RSS     int64 `json:"rss_bytes"`

	lags, queries harness.Latencies
}

// Table writes it for people.
func (r *ComparedReport) Table(w io.Writer) {
	rate := "as fast as they are read"
	if r.Rate > 0 {
		rate = fmt.Sprintf("%.0f batches/s", r.Rate)
	}
	fmt.Fprintf(w, "%s: %d publishers in %d processes, %d batches of %.1f events and %.1f KB, %s; the server on processor %s\n"+
		"| Server | CPU a batch, us | of its runs | batches/s | lag p50 / p99 / most, ms | a query, ms | RSS, MB "+
		"| blocks held | missing | in excess |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", filepath.Base(r.Stream), r.Publishers, r.Processes, r.Batches,
		float64(r.Events)/float64(r.Batches),
		float64(r.Bytes)/float64(r.Batches)/1e3, rate, r.Cores)
	for _, s := range r.Servers {
		var runs []string
		for _, us := range s.OfRuns {
			runs = append(runs, fmt.Sprintf("%.1f", us))
		}
		fmt.Fprintf(w, "| %s | %.1f | %s | %.0f | %.2f / %.2f / %.1f | %.2f | %.0f | %d | %d | %d |\n", s.Name, s.Micros,
			strings.Join(runs, ", "), s.PerSecond,
			s.LagP50Ms, s.LagP99Ms, s.LagMaxMs, s.QueryMs, float64(s.RSS)/1e6, r.Blocks, s.Missing, s.Excess)
	}
	if r.Ratio > 0 {
		fmt.Fprintf(w, "CPU a batch: %s takes %.2f times that of %s\n", r.Servers[len(r.Servers)-1].Name, r.Ratio, r.Servers[0].Name)
	}
	for _, s := range r.Servers {
		if s.LateMs > 100 {
			fmt.Fprintf(w, "The publishers of %s were late by up to %.0f ms: the server did not read as fast, or they had no processor.\n",
				s.Name, s.LateMs)
		}
	}
}

// modelName is the model that all publishers serve.
const modelName = "m"

// Run compares. Blocks that are missing are in the report, not an error.
func (c *Compared) Run() (*ComparedReport, error) {
	if c.Publishers < 1 || c.Processes < 1 || c.Processes > c.Publishers || c.Rounds < 1 || c.Rate < 0 || c.Batches < 0 || c.Cores < 1 {
		return nil, harness.Mistakef("publishers, processes, rounds and cores must be above zero, rate and batches at least zero, " +
			"and there is no process without a publisher")
	}
	rec, err := c.readStream(func(int, int) bool { return false })
	if err != nil {
		return nil, err
	}
	server, players := divideCores(c.Cores)
	r := &ComparedReport{
		Machine: harness.ThisMachine(), Stream: c.Stream, Publishers: c.Publishers, Processes: c.Processes, Rate: c.Rate,
		Cores: cmp.Or(server, "any, with the publishers"),
	}
	for p := range c.Publishers {
		engine, _ := copyOf(p, rec.engines)
		r.Blocks += len(rec.held[engine])
	}
	for _, s := range c.Servers {
		r.Servers = append(r.Servers, &Contended{Name: s.Name})
	}
	r.Events = c.eventsOf(rec)
	for round := range c.Rounds {
		for i, s := range c.Servers {
			for _, every := range []time.Duration{0, markerPause} {
				what := "processor time"
				if every > 0 {
					what = "lag"
				}
				c.Progress.Say("round %d of %d, %s: %s", round+1, c.Rounds, s.Name, what)
				run := &comparedRun{c: c, rec: rec, contender: s, every: every, figures: r.Servers[i], server: server, players: players}
				if err := run.runOnce(); err != nil {
					return nil, fmt.Errorf("%s: %w", s.Name, err)
				}
				r.Batches, r.Bytes = run.batches, run.bytes
			}
		}
	}
	if c.Profile != nil {
		c.Progress.Say("profile of %s", c.Servers[0].Name)
		run := &comparedRun{c: c, rec: rec, contender: c.Servers[0], figures: new(Contended), server: server, players: players,
			profile: c.Profile}
		if err := run.runOnce(); err != nil {
			return nil, err
		}
	}
	for _, s := range r.Servers {
		s.computeFigures()
	}
	if n := len(r.Servers); n > 1 {
		r.Ratio = r.Servers[n-1].Micros / r.Servers[0].Micros
	}
	return r, nil
}

// eventsOf returns how many events all publishers send.
func (c *Compared) eventsOf(rec *recording) (n int) {
	copies := make([]int, rec.engines)
	for p := range c.Publishers {
		copies[p%rec.engines]++
	}
	for i := range rec.messages {
		n += rec.messages[i].events * copies[rec.messages[i].engine]
	}
	return n
}

func (s *Contended) computeFigures() {
	ms := func(l *harness.Latencies, percent float64) float64 { return float64(l.At(percent)) / 1e6 }
	s.LagP50Ms, s.LagP99Ms, s.LagMaxMs, s.Markers = ms(&s.lags, 50), ms(&s.lags, 99), ms(&s.lags, 100), s.lags.Count()
	s.QueryMs = ms(&s.queries, 50)
	sorted := slices.Sorted(slices.Values(s.OfRuns))
	s.Micros = sorted[len(sorted)/2]
	if n := len(sorted); n%2 == 0 {
		s.Micros = (sorted[n/2-1] + sorted[n/2]) / 2
	}
}

// divideCores returns lists of processors for a server and for the playing processes, as taskset reads them; both
// are empty where there are too few, or the system does not tell which there are.
func divideCores(cores int) (server, players string) {
	all := harness.Cores()
	if _, err := exec.LookPath("taskset"); err != nil || len(all) <= cores {
		return "", ""
	}
	at := len(all) - cores
	return strings.Join(all[at:], ","), strings.Join(all[:at], ",")
}

// comparedRun is one run of one server.
type comparedRun struct {
	c               *Compared
	rec             *recording
	contender       Contender
	every           time.Duration // between markers, 0 for the processor time
	figures         *Contended
	server, players string // processors
	profile         io.Writer

	processes      []*harness.Process
	profiles       string // address of profiles
	ports          []int  // by publisher
	markers        []int  // by publisher: how many there were
	batches, bytes int
}

const (
	// markerPause is between two markers. A question for one takes some percent of that.
	markerPause = 20 * time.Millisecond
	// A server that takes less than quietShare of a processor over quietPause has nothing left to apply.
	quietPause = 300 * time.Millisecond
	quietShare = 0.02
	// quietWait is how long a server may go on applying behind the last batch.
	quietWait = 2 * time.Minute
	// lastPause is between questions for the last markers, which are not to cost the server much.
	lastPause = 20 * time.Millisecond
	// headStart is when the playing processes begin, so that all have heard of it.
	headStart = 200 * time.Millisecond
)

func (r *comparedRun) runOnce() error {
	defer func() {
		for _, p := range r.processes {
			p.Stop()
		}
	}()
	if err := r.startPlayers(); err != nil {
		return err
	}
	server, err := r.startServer()
	if err != nil {
		return err
	}
	defer server.Kill()
	ready := make([]said, len(r.processes))
	for i, p := range r.processes {
		if err := readLine(p, &ready[i]); err != nil {
			return err
		}
	}
	begin, cpu := time.Now().Add(headStart), server.CPU()
	for _, p := range r.processes {
		if _, err := fmt.Fprintln(p, begin.UnixNano()); err != nil {
			return err
		}
	}
	profiled := make(chan error, 1)
	if r.profile != nil {
		go func() { profiled <- r.takeProfile() }()
	}
	ends, err := r.followMarkers(server)
	if err != nil {
		return err
	}
	if err := awaitQuiet(server); err != nil {
		return err
	}
	if r.profile != nil {
		return <-profiled
	}
	var seconds float64
	for _, end := range ends {
		r.batches += end.Batches
		r.bytes += end.Bytes
		seconds = max(seconds, end.Seconds)
		r.figures.LateMs = max(r.figures.LateMs, float64(end.Late)/1e6)
	}
	if r.every == 0 {
		r.figures.OfRuns = append(r.figures.OfRuns, float64(server.CPU()-cpu)/float64(r.batches)/1e3)
		r.figures.PerSecond = float64(r.batches) / seconds
		r.figures.RSS = server.RSS()
	}
	return r.compareCounts(server)
}

// startPlayers starts the playing processes.
func (r *comparedRun) startPlayers() error {
	r.ports, r.markers = make([]int, r.c.Publishers), make([]int, r.c.Publishers)
	for i := range r.c.Processes {
		load := r.c.Recorded
		load.Process, load.Every = i, r.every
		p, err := harness.Start("playing", pinCommand(r.players, r.c.Play(load)))
		if err != nil {
			return err
		}
		r.processes = append(r.processes, p)
	}
	for i, p := range r.processes {
		var line said
		if err := readLine(p, &line); err != nil {
			return err
		}
		for j, port := range line.Ports {
			r.ports[i+j*r.c.Processes] = port
		}
	}
	return nil
}

// readLine reads the next line of a playing process.
func readLine(p *harness.Process, line *said) error {
	text, err := p.Line()
	if err == nil {
		err = json.Unmarshal(text, line)
	}
	return err
}

// pinCommand returns cmd on a list of processors, as it is for an empty list.
func pinCommand(list string, cmd *exec.Cmd) *exec.Cmd {
	if list == "" {
		return cmd
	}
	out := exec.Command("taskset", append([]string{"-c", list, cmd.Path}, cmd.Args[1:]...)...) // #nosec G204 -- the program of the bench
	out.Env, out.Dir = cmd.Env, cmd.Dir
	return out
}

// startServer starts the server and registers the publishers.
func (r *comparedRun) startServer() (*harness.Server, error) {
	address, err := freeport.Address()
	if err == nil {
		r.profiles, err = freeport.Address()
	}
	if err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(address, ":")
	_, profiles, _ := strings.Cut(r.profiles, ":")
	words := r.contender.Command(port, profiles)
	cmd := exec.Command(words[0], words[1:]...) // #nosec G204 -- the server to measure
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONDUCTOR_") }), "RUST_LOG=error")
	server, err := harness.Serve(pinCommand(r.server, cmd), "http://"+address)
	if err != nil {
		return nil, err
	}
	err = server.Until(20*time.Millisecond, func() error { _, err := server.Get("/health"); return err })
	for i, port := range r.ports {
		if err != nil {
			break
		}
		_, err = postJSON(server.URL+"/register", map[string]any{
			"instance_id": i + 1, "endpoint": fmt.Sprintf("tcp://127.0.0.1:%d", port), "model_name": modelName,
			"block_size": streams.BlockSize, "dp_rank": 0,
		})
	}
	if err != nil {
		server.Kill()
		return nil, err
	}
	return server, nil
}

// postJSON returns the answer to a body in JSON.
func postJSON(url string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	resp, err := http.Post(url, "application/json", bytes.NewReader(text)) // #nosec G107 -- the server to measure
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s answers %d: %s", url, resp.StatusCode, answer)
	}
	return answer, err
}

// followMarkers waits until all has been sent, and takes the lag of each marker.
func (r *comparedRun) followMarkers(server *harness.Server) ([]*played, error) {
	type heard struct {
		said
		err error
	}
	lines := make(chan heard, 1024)
	for _, p := range r.processes {
		go func() {
			for {
				var h heard
				h.err = readLine(p, &h.said)
				lines <- h
				if h.err != nil || h.End != nil {
					return
				}
			}
		}()
	}
	var ends []*played
	for len(ends) < len(r.processes) {
		h := <-lines
		switch {
		case h.err != nil:
			return nil, h.err
		case h.End != nil:
			ends = append(ends, h.End)
		case h.Marker != nil:
			if err := r.awaitMarker(server, h.Marker); err != nil {
				return nil, err
			}
		}
	}
	return ends, nil
}

// awaitMarker asks until an answer shows a marker.
func (r *comparedRun) awaitMarker(server *harness.Server, m *sentMarker) error {
	r.markers[m.Publisher] = max(r.markers[m.Publisher], m.N+1)
	_, tokens := markerOf(m.Publisher, m.N)
	sent := time.Unix(0, m.At)
	for {
		asked := time.Now()
		text, err := postJSON(server.URL+"/query", map[string]any{"model_name": modelName, "token_ids": tokens})
		if err != nil {
			return err
		}
		now := time.Now()
		var answer struct {
			Scores map[string]json.RawMessage `json:"scores"`
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return fmt.Errorf("the answer to a query cannot be read: %w", err)
		}
		if r.every > 0 {
			r.figures.queries.Add(now.Sub(asked))
		}
		if len(answer.Scores) > 0 {
			if r.every > 0 {
				r.figures.lags.Add(now.Sub(sent))
			}
			return nil
		}
		if r.every == 0 {
			time.Sleep(lastPause)
		}
		if now.Sub(sent) > quietWait {
			return fmt.Errorf("marker %d of publisher %d is not applied after %v", m.N, m.Publisher, quietWait)
		}
	}
}

// awaitQuiet waits until a server has nothing left to apply.
func awaitQuiet(server *harness.Server) error {
	for end := time.Now().Add(quietWait); time.Now().Before(end); {
		before := server.CPU()
		time.Sleep(quietPause)
		if float64(server.CPU()-before) < quietShare*float64(quietPause) {
			return nil
		}
	}
	return fmt.Errorf("the server is still busy %v after the last batch", quietWait)
}

// takeProfile takes a CPU profile from now on until about the end of the run.
func (r *comparedRun) takeProfile() error {
	seconds := 5.0
	if r.c.Rate > 0 {
		seconds = float64(len(r.rec.messages)) * float64(r.c.Publishers) / float64(r.rec.engines) / r.c.Rate
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", r.profiles, max(1, min(60, int(seconds)))))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server gives no profile: status %d", resp.StatusCode)
	}
	_, err = io.Copy(r.profile, resp.Body)
	return err
}

// compareCounts compares what the server holds with what the engines do.
func (r *comparedRun) compareCounts(server *harness.Server) error {
	want := make([]map[heldBlock]bool, r.c.Publishers+1) // by worker, which is the publisher plus 1
	for p := range r.c.Publishers {
		engine, salt := copyOf(p, r.rec.engines)
		list := make(map[heldBlock]bool, len(r.rec.held[engine])+r.markers[p])
		for b := range r.rec.held[engine] {
			b.hash = saltHash(b.hash, salt)
			list[b] = false
		}
		for n := range r.markers[p] {
			h, _ := markerOf(p, n)
			list[heldBlock{hash: h}] = false
		}
		want[p+1] = list
	}
	excess := 0
	err := dumpedBlocks(server.URL, func(worker int, b heldBlock) {
		if worker < 1 || worker >= len(want) {
			excess++
			return
		}
		if seen, is := want[worker][b]; !is || seen {
			excess++
		} else {
			want[worker][b] = true
		}
	})
	if err != nil {
		return err
	}
	missing := 0
	for _, list := range want {
		for _, seen := range list {
			if !seen {
				missing++
			}
		}
	}
	r.figures.Missing, r.figures.Excess = max(r.figures.Missing, missing), max(r.figures.Excess, excess)
	return nil
}

// dumpedBlocks calls yield for each block of a dump in Dynamo's form.
func dumpedBlocks(url string, yield func(worker int, b heldBlock)) error {
	resp, err := http.Get(url + "/dump") // #nosec G107 -- the server to measure
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/dump answers %d", resp.StatusCode)
	}
	d := json.NewDecoder(resp.Body)
	enter := func(want json.Delim) error {
		t, err := d.Token()
		if err == nil && t != want {
			err = fmt.Errorf("%v where %v is due", t, want)
		}
		return err
	}
	read := func() error {
		if err := enter('{'); err != nil {
			return err
		}
		for d.More() {
			if _, err := d.Token(); err != nil { // the name of the partition
				return err
			}
			if err := enter('{'); err != nil {
				return err
			}
			for d.More() {
				key, err := d.Token()
				if err == nil && key == "events" {
					err = dumpedEvents(d, enter, yield)
				} else if err == nil {
					err = d.Decode(new(json.RawMessage))
				}
				if err != nil {
					return err
				}
			}
			if err := enter('}'); err != nil {
				return err
			}
		}
		return enter('}')
	}
	if err := read(); err != nil {
		return fmt.Errorf("the dump cannot be read: %w", err)
	}
	return nil
}

func dumpedEvents(d *json.Decoder, enter func(json.Delim) error, yield func(worker int, b heldBlock)) error {
	if err := enter('['); err != nil {
		return err
	}
	for d.More() {
		var e struct {
			Worker int    `json:"worker_id"`
			Tier   string `json:"storage_tier"`
			Event  struct {
				Data struct {
					Stored struct {
						Blocks []struct {
							Hash uint64 `json:"block_hash"`
						} `json:"blocks"`
					} `json:"stored"`
				} `json:"data"`
			} `json:"event"`
		}
		if err := d.Decode(&e); err != nil {
			return err
		}
		for _, b := range e.Event.Data.Stored.Blocks {
			yield(e.Worker, heldBlock{b.Hash, e.Tier != "device"})
		}
	}
	return enter(']')
}
