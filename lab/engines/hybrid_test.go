package engines_test

import (
	"fmt"
	"maps"
	"slices"
)

// A group is layers of one kind, which have blocks of their own.
type group struct {
	Kind    string `json:"kind"`            // of testdata/vllm_groups.py
	Block   int    `json:"block"`           // in tokens
	Reach   int    `json:"reach,omitempty"` // tokens of a window or a chunk
	Drafter bool   `json:"drafter,omitempty"`
}

func full(block int) group            { return group{Kind: "full", Block: block} }
func mla(block int) group             { return group{Kind: "mla", Block: block} }
func states(block int) group          { return group{Kind: "mamba", Block: block} }
func sliding(block, tokens int) group { return group{Kind: "window", Block: block, Reach: tokens} }
func slidingMLA(block, tokens int) group {
	return group{Kind: "mla window", Block: block, Reach: tokens}
}
func chunked(block, tokens int) group { return group{Kind: "chunked", Block: block, Reach: tokens} }
func (g group) drafting() group       { g.Drafter = true; return g }

// dropping are the options of an engine with a drafter that is registered in a certain way.
func dropping(in string) options { return options{"drafter": true, "drops": in} }

// sparse reports whether prefix_cache_retention_interval changes what the group keeps.
func (g group) sparse() bool {
	return slices.Contains([]string{"window", "mla window", "mamba"}, g.Kind)
}

// A layout is the groups of a model, the size of the pool they share, and what else decides what an engine takes from its cache.
type layout struct {
	name   string
	groups []group
	blocks int // so few that the engine evicts all the time
	more   options
	// may be other than exact where events do not tell all: docs/contributing/engines.md says what is missing.
	may slack
}

var layouts = []layout{
	{"full, window", []group{full(16), sliding(16, window)}, 320, options{"salts": []any{nil, "tenant-a"}}, exact},
	{"full of 64, window 64", []group{full(64), sliding(16, 64)}, 220, nil, exact},
	{"full of 64, window 32", []group{full(64), sliding(16, 32)}, 220, nil, exact},
	{"full, window of 64", []group{full(16), sliding(64, 64)}, 260, nil, exact},
	{"full, windows 64 and 256", []group{full(16), sliding(16, 64), sliding(16, 256)}, 400, nil, exact},
	{"full, three windows", []group{full(16), sliding(16, window), sliding(16, window), sliding(16, window)}, 520, nil, exact},
	{"three full, window", []group{full(16), full(16), full(16), sliding(16, window)}, 640, nil, exact},
	{"window alone", []group{sliding(16, window)}, 160, nil, shorter},
	{"window alone, all kept", []group{sliding(16, window)}, 160, options{"retention": nil}, exact},
	{"states", []group{full(16), states(16)}, 200, options{"loras": []any{nil, "adapter-a"}}, exact},
	{"three groups of states", []group{full(16), states(16), states(16), states(16)}, 260, nil, exact},
	{"states of 64", []group{full(16), states(64)}, 200, nil, exact},
	{"full and states of 64", []group{full(64), states(64)}, 80, nil, shorter},
	{"states, window", []group{full(16), states(16), sliding(16, window)}, 300, nil, exact},
	{"states alone", []group{states(16)}, 60, nil, shorter},
	{"MLA of 64, windows 32 and 128", []group{mla(64), slidingMLA(16, 32), slidingMLA(32, window)}, 300, nil, exact},
	{"MLA of 256, hashes of 4", []group{mla(256), slidingMLA(64, window), slidingMLA(4, 8), slidingMLA(8, window)}, 500,
		options{"block": 4}, exact},
	{"full, chunks", []group{full(16), chunked(16, 128)}, 320, nil, longer},
	{"drafter", []group{full(16)}, 200, options{"drafter": true}, exact},
	{"drafter, full, window", []group{full(16).drafting(), sliding(16, window)}, 320, options{"drafter": true}, exact},
	{"drafter's full, full, window", []group{full(16), sliding(16, window), full(16).drafting()}, 480, options{"drafter": true}, exact},
	{"drafter, full of 64, window 64", []group{full(64).drafting(), sliding(16, 64)}, 220, options{"drafter": true}, exact},
	{"drafter, states", []group{full(16).drafting(), states(16)}, 220, options{"drafter": true}, exact},
	{"drafter, all groups drop", []group{full(16), sliding(16, window)}, 320, dropping("drops_in_all_groups"), exact},
	{"drafter, all groups drop, windows 64 and 256", []group{full(16), sliding(16, 64), sliding(16, 256)}, 400,
		dropping("drops_in_all_groups"), exact},
	{"drafter's window", []group{full(16), sliding(16, window).drafting()}, 320, dropping("drops_in_windows"), exact},
	{"drafter's window, full of 64", []group{full(64), sliding(16, 64).drafting()}, 220, dropping("drops_in_windows"), longer},
	{"drafter, all groups drop, full of 64", []group{full(64), sliding(16, 32)}, 220, dropping("drops_in_all_groups"), longer},
	{"full report, window", []group{full(16), sliding(16, window)}, 320, options{"full": "sessions"}, shorter},
	{"full report, states", []group{full(16), states(16)}, 200, options{"full": "sessions"}, shorter},
	{"look-ahead 1, window", []group{full(16).drafting(), sliding(16, window)}, 320, options{"lookahead": 1}, exact},
	{"look-ahead 1, states", []group{full(16).drafting(), states(16)}, 200, options{"lookahead": 1}, exact},
}

// offloading are models whose engines offload to the host, with the release's own connector. It says what they load from there.
var offloading = []layout{
	{"full, window", []group{full(16), sliding(16, window)}, 320, options{"salts": []any{nil, "tenant-a"}}, exact},
	{"full, window of 72 tokens", []group{full(16), sliding(16, 72)}, 320, nil, exact},
	{"full, window of 65 tokens", []group{full(16), sliding(16, 65)}, 320, nil, exact},
	{"full, windows 64 and 256", []group{full(16), sliding(16, 64), sliding(16, 256)}, 400, nil, exact},
	{"three full, window", []group{full(16), full(16), full(16), sliding(16, window)}, 640, nil, exact},
	{"states", []group{full(16), states(16)}, 200, options{"loras": []any{nil, "adapter-a"}}, exact},
	{"states, window", []group{full(16), states(16), sliding(16, window)}, 300, nil, exact},
	{"full of 64, window of 16", []group{full(64), sliding(16, window)}, 320, nil, exact},
	{"full of 16, window of 64", []group{full(16), sliding(64, window)}, 320, nil, exact},
	{"full of 16, states of 64", []group{full(16), states(64)}, 220, nil, exact},
	{"full of 64, windows of 16 and 32", []group{full(64), sliding(16, 32), sliding(32, window)}, 320, nil, exact},
	{"full and states of 64", []group{full(64), states(64)}, 300, nil, shorter},
	{"window alone", []group{sliding(16, window)}, 320, nil, shorter},
	{"drafter's window", []group{full(16), sliding(16, window).drafting()}, 320, dropping("drops_in_windows"), exact},
	{"drafter, full, window", []group{full(16).drafting(), sliding(16, window)}, 320, options{"drafter": true}, exact},
	{"drafter", []group{full(16).drafting()}, 200, options{"drafter": true}, exact},
}

// options returns the options of an engine whose groups keep what retention says.
func (l layout) options(retention any) options {
	o := options{"groups": l.groups, "blocks": l.blocks, "retention": retention, "hash_seed": "0"}
	maps.Copy(o, l.more)
	return o
}

// hybrid compares engines of a model with several kinds of layers with what their cache managers take. They keep as few checkpoints
// as vLLM does unless told otherwise, all, and one every 256 tokens. Their groups have other numbers in each. Half-way the caches are
// reset.
func (l layout) hybrid(f *fleet) {
	f.server = startServer(f.t, "")
	retentions := []any{0, nil, 256}
	if !f.release.since("0.33") {
		retentions[0] = nil // it keeps so few that hardly a prompt finds any
	}
	if !slices.ContainsFunc(l.groups, group.sparse) {
		retentions = []any{nil, nil}
	}
	for i, retention := range retentions {
		port := freePorts(f.t, 2)
		f.register(f.engine(fmt.Sprintf("engine-%d", i), 0, port, port+1, l.options(retention)))
	}
	for _, e := range f.engines {
		e.answer()
	}
	want := f.want
	f.want /= 2
	f.rounds(l.may)
	for _, e := range f.engines {
		e.do(command{Do: "clear"})
		f.settle(e, "synced")
		f.compare([]*engine{e}, 3, exact)
	}
	f.want = want
	f.rounds(l.may)
	l.concludes(f)
}

// offloads returns a scenario of engines that offload chunks of several blocks of each group. A connector that does not describe its
// chunks names each by its last hash, without its size. That has to be guessed: some chunks count as their last block alone. So do
// those of other groups than full attention, which it never describes, if their first blocks have no names.
func (l layout) offloads(blocks int, describes bool) scenario {
	name := fmt.Sprintf("offloading: %s, chunks of %d", l.name, blocks)
	if !describes {
		name += ", hashes"
	}
	if blocks > 1 && (!describes || l.hidesBlocks()) {
		l.may = shorter
	}
	more := options{"offload": options{"chunk": blocks, "describes": describes}, "clear": "all"}
	maps.Copy(more, l.more)
	l.more = more
	return scenario{name, vllmSince("0.33"), l.hybrid}
}

// hidesBlocks reports whether full attention does not name all blocks of the other groups: its own are larger.
func (l layout) hidesBlocks() bool {
	size := 0
	for _, g := range l.groups {
		if !g.sparse() {
			size = g.Block
		}
	}
	return slices.ContainsFunc(l.groups, func(g group) bool { return g.Block < size })
}

// hybridRanks compares two data-parallel ranks of one instance. Each takes what its own groups have.
func (l layout) hybridRanks(f *fleet) {
	f.server = startServer(f.t, "")
	port, retention := freePorts(f.t, 4), any(0)
	if !f.release.since("0.33") {
		retention = nil // see hybrid
	}
	for rank := range 2 {
		f.register(f.engine("engine", rank, port+rank, port+2+rank, l.options(retention)))
	}
	for _, e := range f.engines {
		e.answer()
	}
	const rounds = 10
	for range rounds {
		for _, e := range f.engines {
			e.do(command{Do: "work", N: 150})
			f.settle(e, "synced")
		}
		f.compare(f.engines, f.want/rounds+1, l.may)
	}
	l.concludes(f)
}

// concludes checks the findings, of which some are due: about blocks that are larger than the registered ones, and about layers
// and chunks on the host of which events do not tell all.
func (l layout) concludes(f *fleet) {
	f.note = fmt.Sprintf("%d of them above 0", f.some)
	if l.may != exact {
		f.note += fmt.Sprintf(", %d not exact", f.differ)
	}
	if f.some < f.answers/4 {
		f.t.Errorf("only %d of %d answers are above 0", f.some, f.answers)
	}
	for _, e := range f.engines {
		row := f.server.service(e)
		for _, finding := range row.Findings {
			due := finding.Code == "larger_blocks" || finding.Code == "unknown_layers" && l.may != exact ||
				finding.Code == "offload_chunks" && l.may != exact
			if !due {
				f.t.Errorf("%s: finding %s: %s", e.instance, finding.Code, finding.Message)
			}
		}
		if n := row.DroppedBy["unknown_hash"]; n > 0 {
			f.note += fmt.Sprintf(", %s: %d unknown hashes", e.instance, n)
		}
	}
}

// enough answers of a scenario show a fault of one in a hundred.
const enough = 450

// hybrids returns the scenarios of models with several kinds of layers.
func hybrids() (all []scenario) {
	for _, l := range layouts {
		since := "0.24"
		if l.more["lookahead"] != nil || l.name == "full and states of 64" { // no partial hits before
			since = "0.33"
		}
		all = append(all, scenario{"groups: " + l.name, vllmSince(since), l.hybrid})
	}
	for _, l := range offloading {
		all = append(all, l.offloads(1, true), l.offloads(1, false), l.offloads(2, true), l.offloads(2, false))
	}
	alone := layout{"full attention alone", []group{full(16)}, 200, nil, exact}
	all = append(all, alone.offloads(2, true), alone.offloads(2, false))
	return append(all,
		scenario{"groups: ranks, full, window", vllmSince("0.24"), layouts[0].hybridRanks},
		scenario{"groups: ranks, states of 64", vllmSince("0.24"), layouts[11].hybridRanks},
		scenario{"groups: adapters loaded again", vllmSince("0.33"), func(f *fleet) {
			o := layouts[0].options(0)
			o["loras"] = []any{nil, "adapter-a", "adapter-b"}
			f.reloads(exact, o)
		}})
}
