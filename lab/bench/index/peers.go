package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/lab/harness"
)

// Peers replays the same ops files into the index and into the rival of
// lab/bench/peers/dynamo, each in a process of its own and in turns, and prints one table of
// ratios.
type Peers struct {
	Load    []string // flags of bench index for every trace: --trace, --seed …
	Streams string   // directory of recorded streams
	Rival   string   // the rival's program, empty for none
	Dir     string   // for ops files, which stay
	Rounds  int
	Shrink  int    // divides the sizes of loads, for a try
	Target  int    // of smg's loads
	Only    string // pattern of the rows' loads
	Verify  bool   // compare answers with the oracle's and the rival's
	// Self returns a command of this program: conductor-lab bench index, and the arguments.
	Self     func(args ...string) *exec.Cmd
	Progress harness.Progress
}

// peerLoad is a load and its rows.
type peerLoad struct {
	name     string
	recorded string // file in Peers.Streams
	flags    string // of bench index; %d is divided by Shrink
	sizes    []int
	run      string // further flags of our run
	rival    string // name of the load that the rival replays in its place
	mode     string // of the rival, empty for none
	// against is the flags of a run of ours that takes the rival's place.
	against string
	// usual is the load of ours that takes the rival's place.
	usual string
	rows  []peerRow
}

// peerRow is one figure.
type peerRow struct {
	what  string
	key   string  // of both reports; a dot leads into an object
	unit  float64 // of the report in one unit of the table
	less  bool    // less is better
	ratio float64 // target: ours over the rival's, or the other way round with less; 0 for none
	limit float64 // target of ours, in units of the table; 0 for none
	note  string  // smg's published figure
}

const (
	perM  = 1e6 // operations a second, in millions
	perUs = 1e3 // nanoseconds, in microseconds
	perMB = 1e6
)

// ordinaryRows are the figures of a load that both replay.
func ordinaryRows(rate, p50, p99 float64) []peerRow {
	return []peerRow{
		{what: "block ops, M/CPU s", key: "block_ops_per_sec", unit: perM, ratio: rate},
		{what: "writes, M blocks/CPU s", key: "write_blocks_per_sec", unit: perM, ratio: rate},
		{what: "query p50, µs", key: "query.p50_ns", unit: perUs, less: true, ratio: p50},
		{what: "query p99, µs", key: "query.p99_ns", unit: perUs, less: true, ratio: p99},
	}
}

// recordedRows are the figures of a stream that engines made.
func recordedRows(rate float64) []peerRow {
	rows := ordinaryRows(rate, 2, 3)
	rows[1].ratio = 0 // the block operations have the target
	return rows
}

func memoryRows(limit float64) []peerRow {
	return []peerRow{
		{what: "bytes a block, names included", key: "bytes_per_block", unit: 1, less: true, limit: limit},
		{what: "RSS a membership, B", key: "rss_per_membership", unit: 1, less: true},
		{what: "peak RSS, MB", key: "rss_peak_bytes", unit: perMB, less: true},
	}
}

// smgRows are the figures of smg's benchmark; theirs are of unknown hardware.
func smgRows(bytes, gate, one, writes string) []peerRow {
	return []peerRow{
		{what: "RSS a holder-block, B", key: "rss_per_membership", unit: 1, less: true, note: bytes},
		{what: "fill, M blocks/CPU s", key: "write_blocks_per_sec", unit: perM, note: writes},
		{what: "gate p99, µs", key: "classes.gate.p99_ns", unit: perUs, less: true, note: gate},
		{what: "H=1 p50, µs", key: "classes.H=1.p50_ns", unit: perUs, less: true, note: one},
		{what: "H=64 p50, µs", key: "classes.H=64.p50_ns", unit: perUs, less: true},
		{what: "miss p50, µs", key: "classes.miss.p50_ns", unit: perUs, less: true},
		{what: "mixed p99, µs", key: "classes.mixed.p99_ns", unit: perUs, less: true},
	}
}

// peerLoads returns all loads, in the order of the table.
func peerLoads(smgTarget int) []peerLoad {
	const base = "--workers 128 --copies %d"
	loads := []peerLoad{
		{name: "recorded vLLM", recorded: "vllm.msgpack.zst", flags: "--apart", mode: "time", rows: recordedRows(4)},
		{name: "recorded vLLM; events of a batch joined for CRTC too", recorded: "vllm.msgpack.zst", mode: "time",
			rows: recordedRows(0)[:2]},
		{name: "recorded vLLM, memory", recorded: "vllm.msgpack.zst", flags: "--apart", mode: "mem", rows: memoryRows(0)},
		{name: "recorded SGLang", recorded: "sglang.msgpack.zst", flags: "--apart", mode: "time", rows: recordedRows(3)},
		{name: "recorded SGLang, memory", recorded: "sglang.msgpack.zst", flags: "--apart", mode: "mem", rows: memoryRows(0)},
		{name: "recorded vLLM with offloading; CRTC without the host", recorded: "vllm-offload.msgpack.zst", flags: "--apart", mode: "time",
			rows: append(recordedRows(3),
				peerRow{what: "block ops with tokens alone, M/CPU s of all", key: "token_block_ops_per_sec", unit: perM})},
		{name: "recorded vLLM with offloading, memory", recorded: "vllm-offload.msgpack.zst", flags: "--apart", mode: "mem",
			rows: memoryRows(0)},
		{name: "128 workers x 8 copies", flags: base, sizes: []int{8}, mode: "time", rows: ordinaryRows(3, 4, 3)},
		{name: "the same, memory", flags: base, sizes: []int{8}, mode: "mem", rows: memoryRows(0)},
		{name: "1,000 workers x 4 copies", flags: "--workers 1000 --copies %d --capacity 2048", sizes: []int{4}, mode: "time",
			rows: ordinaryRows(3, 4, 3)},
		{name: "16-token blocks", flags: "--workers 128 --copies %d --block-size 16 --capacity 131072", sizes: []int{2}, mode: "time",
			rows: ordinaryRows(3, 4, 3)},
	}
	for _, c := range Cases {
		target := 0.0 // no engine sends the others
		if c == "split1" {
			target = 1.5
		}
		l := peerLoad{name: "case " + c, flags: base + " --case " + c, sizes: []int{8}, mode: "time", rows: ordinaryRows(target, 0, 0)[:2]}
		loads = append(loads, l)
		if c == "split1" || c == "roots" {
			continue
		}
		// Orders of removals that no engine makes may cost ours twice as much as the usual one.
		l.name, l.mode, l.usual, l.rows = l.name+"; case split1", "", "case split1", ordinaryRows(0.5, 0, 0)[:2]
		loads = append(loads, l)
	}
	return append(loads,
		peerLoad{name: "case roots, memory", flags: base + " --case roots", sizes: []int{8}, mode: "mem", rows: memoryRows(0)[:1]},
		peerLoad{name: "pools, hash-only; CRTC without them", flags: base + " --pools 8", sizes: []int{8}, mode: "time",
			rows: append(ordinaryRows(1, 0, 0),
				peerRow{what: "block ops with tokens alone, M/CPU s of all", key: "token_block_ops_per_sec", unit: perM})},
		peerLoad{name: "three tiers, counted copies; CRTC on one tier", flags: base + " --tiers 3 --repeat 10", sizes: []int{8},
			rival: "128 workers x 8 copies", mode: "time", rows: ordinaryRows(2.5, 0, 0)[:1]},
		peerLoad{name: "one writer, one reader", flags: base, sizes: []int{8}, run: "--together", mode: "together", rows: []peerRow{
			{what: "written, M/s wall", key: "together.write_together_blocks_per_sec", unit: perM, ratio: 3},
			{what: "of alone", key: "together.write_kept", unit: 1, limit: 0.8},
			{what: "read, M/s wall", key: "together.read_together_blocks_per_sec", unit: perM, ratio: 3},
			{what: "of alone", key: "together.read_kept", unit: 1, limit: 0.8},
			{what: "written, M/CPU s of its thread", key: "together.write_together_per_cpu_sec", unit: perM},
			{what: "read, M/CPU s of its thread", key: "together.read_together_per_cpu_sec", unit: perM},
			{what: "query p99, µs", key: "together.beside.p99_ns", unit: perUs, less: true},
		}},
		peerLoad{name: "two writers; one writer", flags: base, sizes: []int{8}, run: "--writers 2 --readers 0",
			against: "--writers 1 --readers 0", rows: []peerRow{
				{what: "written, M/s wall", key: "together.write_alone_blocks_per_sec", unit: perM, ratio: 1.7},
			}},
		peerLoad{name: "events of 64 blocks, 10 M held", flags: "--synthetic %d --churn %d --event-blocks 64",
			sizes: []int{10_000_000, 2_000_000}, rows: []peerRow{
				{what: "write p50, µs", key: "write.p50_ns", unit: perUs, less: true},
				{what: "write p99, µs", key: "write.p99_ns", unit: perUs, less: true},
				{what: "write p99.9, µs", key: "write.p999_ns", unit: perUs, less: true, limit: 150},
				{what: "write max, µs", key: "write.max_ns", unit: perUs, less: true, limit: 5000},
			}},
		peerLoad{name: "10 M blocks, 1 holder", flags: "--synthetic %d", sizes: []int{10_000_000}, mode: "mem", rows: memoryRows(28)},
		peerLoad{name: "1 M blocks, 8 holders", flags: "--synthetic %d --holders 8", sizes: []int{1_000_000}, mode: "mem",
			rows: memoryRows(28)},
		peerLoad{name: "smg pinned", flags: "--smg pinned --target %d", sizes: []int{smgTarget}, mode: "time",
			rows: smgRows("26.9", "7.6", "0.292", "4.6")},
		peerLoad{name: "smg fragmented", flags: "--smg fragmented --target %d", sizes: []int{smgTarget}, mode: "time",
			rows: smgRows("27.5", "8.3", "", "")},
	)
}

// figures are the numbers of a report, by path.
type figures map[string]float64

// Run prints the table, a line for each row as soon as it is there.
func (p *Peers) Run(w io.Writer) error {
	only, err := regexp.Compile(p.Only)
	if err != nil {
		return harness.Mistakef("cannot choose rows: %w", err)
	}
	if p.Rival != "" {
		if _, err := exec.LookPath(p.Rival); err != nil {
			return fmt.Errorf("no rival to measure: %w", err)
		}
	}
	if p.Rounds < 1 || p.Shrink < 1 {
		return harness.Mistakef("rounds is %d and shrink %d, must be at least 1", p.Rounds, p.Shrink)
	}
	loads := peerLoads(p.Target)
	if !slices.ContainsFunc(loads, func(l peerLoad) bool { return only.MatchString(l.name) }) {
		var names []string
		for i := range loads {
			names = append(names, loads[i].name)
		}
		return harness.Mistakef("rows is %q, which is none of %s", p.Only, strings.Join(names, ", "))
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return fmt.Errorf("cannot keep ops files: %w", err)
	}
	m := harness.ThisMachine()
	fmt.Fprintf(w, "%s, %d cores, %s, load %v; medians of %d rounds, of recorded streams %d\n\n", m.CPU, m.Cores, m.Go, m.Load, p.Rounds,
		p.Rounds*recordedRounds)
	fmt.Fprintf(w, "| Load | Figure | Ours | CRTC | Ratio | Target | smg published |\n|---|---|---|---|---|---|---|\n")
	var failed []error
	for i := range loads {
		l := &loads[i]
		if !only.MatchString(l.name) {
			continue
		}
		if err := p.measureLoad(w, l, loads); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", l.name, err))
		}
	}
	return errors.Join(failed...)
}

// measureLoad measures one load and prints its rows.
func (p *Peers) measureLoad(w io.Writer, l *peerLoad, all []peerLoad) error {
	file, err := p.exportOps(l)
	if err != nil {
		return err
	}
	theirs := file
	if other := cmp.Or(l.rival, l.usual); other != "" {
		i := slices.IndexFunc(all, func(o peerLoad) bool { return o.name == other })
		if theirs, err = p.exportOps(&all[i]); err != nil {
			return err
		}
	}
	replay := p.replayArgs(l, file)
	var ours, others []figures
	rounds := p.Rounds
	if l.recorded != "" {
		rounds *= recordedRounds
	}
	for round := range rounds {
		p.Progress.Say("%s, round %d", l.name, round+1)
		f, err := p.runOurs(replay, l.run)
		if err != nil {
			return err
		}
		ours = append(ours, f)
		switch {
		case l.against != "":
			f, err = p.runOurs(replay, l.against)
		case l.usual != "":
			f, err = p.runOurs([]string{"--ops", theirs}, l.run)
		case l.mode != "" && p.Rival != "":
			f, err = p.runRival(l, theirs, round)
		default:
			continue
		}
		if err != nil {
			return err
		}
		others = append(others, f)
	}
	for _, r := range l.rows {
		fmt.Fprintln(w, r.formatLine(l.name, ours, others))
	}
	if p.Verify && l.mode == "time" {
		return p.compareAnswers(w, l, replay, file, theirs)
	}
	return nil
}

// loadArgs returns the flags of a load and the name of its ops file.
func (p *Peers) loadArgs(l *peerLoad) (args []string, name string) {
	var sizes []any
	for _, n := range l.sizes {
		sizes = append(sizes, max(1, n/p.Shrink))
	}
	args = strings.Fields(fmt.Sprintf(l.flags, sizes...))
	switch {
	case l.recorded != "":
		args = append(args, "--stream", filepath.Join(p.Streams, l.recorded))
	case !strings.Contains(l.flags, "--synthetic") && !strings.Contains(l.flags, "--smg"):
		args = append(args, p.Load...)
	}
	name = strings.NewReplacer("--", "", " ", "-", "/", "_").Replace(strings.Join(args, " ")) + ".ops"
	return args, filepath.Join(p.Dir, name)
}

// recordedRounds multiplies the rounds of recorded streams, whose runs take a tenth of a second.
const recordedRounds = 3

// replayArgs returns the flags of a run of ours. The rival gets each event of a recorded stream as the
// engine made it; ours replays the recording, whose batches it joins as the server does.
func (p *Peers) replayArgs(l *peerLoad, file string) []string {
	if l.recorded != "" {
		return []string{"--stream", filepath.Join(p.Streams, l.recorded)}
	}
	return []string{"--ops", file}
}

// exportOps writes the ops file of a load once, that of a recorded stream each time: it is quick,
// and the recording may be a new one.
func (p *Peers) exportOps(l *peerLoad) (string, error) {
	args, file := p.loadArgs(l)
	if _, err := os.Stat(file); err == nil && l.recorded == "" {
		return file, nil
	}
	p.Progress.Say("%s: making the operations", l.name)
	part := file + ".part"
	if _, err := runCommand(p.Self(append(args, "--export", part, "--quiet")...)); err != nil {
		return "", err
	}
	return file, os.Rename(part, file)
}

// runOurs runs the index.
func (p *Peers) runOurs(replay []string, flags string) (figures, error) {
	args := slices.Concat(replay, []string{"--json", "--quiet", "--idle", "0"}, strings.Fields(flags))
	return p.measureCommand(p.Self(args...), strings.Contains(flags, "--together") || strings.Contains(flags, "--writers"))
}

// runRival runs CRTC. Its memory is measured in a process of its own, once.
func (p *Peers) runRival(l *peerLoad, file string, round int) (figures, error) {
	f, err := p.measureCommand(exec.Command(p.Rival, file, l.mode), l.mode == "together")
	if err != nil || l.mode != "time" || round > 0 || !slices.ContainsFunc(l.rows, func(r peerRow) bool {
		return strings.HasPrefix(r.key, "rss")
	}) {
		return f, err
	}
	mem, err := p.measureCommand(exec.Command(p.Rival, file, "mem"), false)
	for k, v := range mem {
		f[k] = v
	}
	return f, err
}

// measureCommand runs a command, on one core unless it needs more, and reads its JSON object.
func (p *Peers) measureCommand(c *exec.Cmd, wide bool) (figures, error) {
	_, _, core := harness.Allowed()
	if path, err := exec.LookPath("taskset"); err == nil && core != "" && !wide {
		c.Args = append([]string{path, "-c", core}, append([]string{c.Path}, c.Args[1:]...)...)
		c.Path = path
	}
	out, err := runCommand(c)
	if err != nil {
		return nil, err
	}
	var report map[string]any
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	f := figures{}
	f.collectNumbers("", report)
	return f, nil
}

func (f figures) collectNumbers(path string, v any) {
	switch v := v.(type) {
	case float64:
		f[path] = v
	case map[string]any:
		for k, v := range v {
			f.collectNumbers(strings.TrimPrefix(path+"."+k, "."), v)
		}
	}
}

// runCommand runs a command. Its error has the standard error of the command.
func runCommand(c *exec.Cmd) ([]byte, error) {
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), nil
}

// median returns the middle of the values that are there.
func median(of []float64) (float64, bool) {
	if len(of) == 0 {
		return 0, false
	}
	slices.Sort(of)
	return of[len(of)/2], true
}

// formatLine prints a row of the table.
func (r *peerRow) formatLine(load string, ours, others []figures) string {
	var mine, theirs, ratios []float64
	for i, f := range ours {
		a, ok := f[r.key]
		if !ok {
			continue
		}
		mine = append(mine, a/r.unit)
		if i >= len(others) {
			continue
		}
		if b, ok := others[i][r.key]; ok {
			theirs = append(theirs, b/r.unit)
			if r.less {
				a, b = b, a
			}
			if b > 0 {
				ratios = append(ratios, a/b)
			}
		}
	}
	cell := func(v []float64, end string) (string, float64) {
		m, ok := median(v)
		if !ok {
			return "", 0
		}
		if m >= 1000 {
			return strconv.FormatFloat(m, 'f', 0, 64) + end, m
		}
		return strconv.FormatFloat(m, 'g', 3, 64) + end, m
	}
	a, mid := cell(mine, "")
	b, _ := cell(theirs, "")
	c, ratio := cell(ratios, "x")
	target := ""
	judge := func(met bool) string {
		if met {
			return ", met"
		}
		return ", missed"
	}
	switch {
	case r.limit > 0 && r.less:
		target = fmt.Sprintf("<= %g", r.limit) + judge(mid <= r.limit)
	case r.limit > 0:
		target = fmt.Sprintf(">= %g", r.limit) + judge(mid >= r.limit)
	case r.ratio > 0:
		target = fmt.Sprintf(">= %gx", r.ratio)
		if len(ratios) > 0 {
			target += judge(ratio >= r.ratio)
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |", load, r.what, a, b, c, target, r.note)
}

// compareAnswers compares the index with the oracle, and the rival with the index.
func (p *Peers) compareAnswers(w io.Writer, l *peerLoad, replay []string, file, theirs string) error {
	p.Progress.Say("%s: comparing answers", l.name)
	mine, other := filepath.Join(p.Dir, "ours.answers"), filepath.Join(p.Dir, "rival.answers")
	f, err := p.measureCommand(
		p.Self(append(slices.Clone(replay), "--json", "--quiet", "--idle", "0", "--verify", "--answers", mine)...), true)
	if err != nil {
		return err
	}
	row := peerRow{what: "answers equal to the oracle's", key: "verified", unit: 1}
	var rival []figures
	if p.Rival != "" && file == theirs {
		if _, err := runCommand(exec.Command(p.Rival, file, "answers", other)); err != nil {
			return err
		}
		n, err := equalAnswers(mine, other)
		if err != nil {
			return err
		}
		rival = []figures{{"verified": float64(n)}}
	}
	fmt.Fprintln(w, row.formatLine(l.name, []figures{f}, rival))
	return nil
}

// equalAnswers counts the equal ones of two files of hashes.
func equalAnswers(a, b string) (n int, err error) {
	x, errA := os.ReadFile(a)
	y, errB := os.ReadFile(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	for len(x) >= 8 && len(y) >= 8 {
		if binary.LittleEndian.Uint64(x) == binary.LittleEndian.Uint64(y) {
			n++
		}
		x, y = x[8:], y[8:]
	}
	return n, nil
}
