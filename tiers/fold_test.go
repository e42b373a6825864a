package tiers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// scene is written "owner: blocks; ...". An owner is rank@medium for a rank of
// instance 0, i.rank@medium for another instance, pool@medium for a pool that
// serves everyone, pool[1,2]@medium for one bound to instances.
func scene(t *testing.T, text string) (owners []Owner, held [][]int) {
	t.Helper()
	for _, part := range strings.Split(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, blocks, ok1 := strings.Cut(part, ":")
		who, medium, ok2 := strings.Cut(name, "@")
		if !ok1 || !ok2 {
			t.Fatalf("bad scene part %q", part)
		}
		o := Owner{Medium: ParseMedium(medium)}
		if rest, pool := strings.CutPrefix(who, "pool"); pool {
			o.Instance = Pool
			o.Rank = -1
			if rest != "" {
				o.Serves = numbers[int32](t, strings.Trim(rest, "[]"))
			}
		} else {
			if instance, rank, two := strings.Cut(who, "."); two {
				o.Instance = numbers[int32](t, instance)[0]
				who = rank
			}
			o.Rank = numbers[int32](t, who)[0]
		}
		owners = append(owners, o)
		held = append(held, numbers[int](t, blocks))
	}
	return owners, held
}

func numbers[T int | int32](t *testing.T, text string) []T {
	t.Helper()
	out := []T{}
	for _, s := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		must.Succeed(t, err)
		out = append(out, T(n))
	}
	return out
}

// spansOf lists what owners hold of blocks 0..n-1, up to the first block without an owner.
func spansOf(held [][]int, n int) (prefixes []Prefix, later []Span) {
	for end := range n {
		if !slices.ContainsFunc(held, func(blocks []int) bool { return slices.Contains(blocks, end) }) {
			n = end
		}
	}
	for o, blocks := range held {
		for from := 0; from < n; from++ {
			to := from
			for to < n && slices.Contains(blocks, to) {
				to++
			}
			switch {
			case to == from:
			case from == 0:
				prefixes = append(prefixes, Prefix{uint32(o), uint32(to)})
			default:
				later = append(later, Span{uint32(o), uint32(from), uint32(to)})
			}
			from = to
		}
	}
	slices.SortStableFunc(later, func(a, b Span) int { return int(a.From) - int(b.From) })
	return prefixes, later
}

// print writes a row as "longest GPU CPU DISK [NAME:n] | rank:blocks(device host disk) ...".
func (r Row) print() string {
	var b strings.Builder
	fmt.Fprint(&b, r.Longest)
	for i, m := range r.Media {
		if i < 3 {
			fmt.Fprint(&b, " ", m.Blocks)
		} else {
			fmt.Fprint(&b, " ", m.Name, ":", m.Blocks)
		}
	}
	b.WriteString(" |")
	for _, k := range r.Ranks {
		fmt.Fprintf(&b, " %d:%d(%d %d %d)", k.Rank, k.Blocks, k.Device, k.Host, k.Disk)
	}
	return b.String()
}

// fold returns one row per instance, in their order.
func fold(f *Folder, prefixes []Prefix, later []Span, owners []Owner, instances []Instance) []Row {
	hits := f.FoldHits(prefixes, later, owners, nil, NewRowSet(instances))
	rows := make([]Row, len(instances))
	for i := range rows {
		rows[i] = f.RowOfOther(i)
	}
	for _, h := range hits {
		rows[h.At] = Row{h.Longest, slices.Clone(h.Media), slices.Clone(h.Ranks)}
	}
	return rows
}

// foldScene folds a scene for instance 0 with the given registered ranks.
func foldScene(t *testing.T, text string, blocks int, ranks ...int32) string {
	t.Helper()
	owners, held := scene(t, text)
	var f Folder
	prefixes, later := spansOf(held, blocks)
	return fold(&f, prefixes, later, owners, []Instance{{0, ranks}})[0].print()
}

// The worked scenarios of the published algorithms, tokens divided by 16. CPU and
// disk blocks come from a pool, except where the rank is named.
func TestFoldScenarios(t *testing.T) {
	f := func(text string, blocks int, ranks []int32, want string) {
		t.Helper()
		if got := foldScene(t, text, blocks, ranks...); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
	r0, r01 := []int32{0}, []int32{0, 1}
	f("0@gpu: 0,1; 0@cpu: 0,1,2; 0@disk: 0,1,2", 3, r0, "3 2 3 3 | 0:3(2 3 3)")
	f("0@gpu: 0,1; pool@cpu: 0,1,2; pool@disk: 0,1,2", 3, r0, "3 2 3 3 | 0:2(2 3 3)")
	f("0@gpu: 0,1; pool@cpu: 2; pool@disk: 3", 4, r0, "4 2 1 1 | 0:2(2 3 4)")
	f("0@gpu: 0,1; 0@cpu: 2; 0@disk: 3", 4, r0, "4 2 1 1 | 0:4(2 3 4)")
	f("0@gpu: 0; pool@disk: 1,2", 3, r0, "3 1 0 2 | 0:1(1 1 3)")
	f("0@gpu: 0,1,2", 3, r0, "3 3 0 0 | 0:3(3 3 3)")
	f("0@gpu: 0; pool@cpu: 2; pool@disk: 1,3", 4, r0, "4 1 1 2 | 0:1(1 1 2)")
	f("0@gpu: 0; 1@gpu: 1", 2, r01, "2 2 0 0 | 0:1(1 1 1) 1:1(0 0 0)")
	f("0@gpu: 0,1; 1@gpu: 0; pool@cpu: 2; pool@disk: 3", 4, r01, "4 2 1 1 | 0:2(2 3 4) 1:1(1 1 1)")
	f("0@gpu: 0,1; 1@gpu: 0; 0@cpu: 2; pool@disk: 3", 4, r01, "4 2 1 1 | 0:3(2 3 4) 1:1(1 1 1)")
	f("0@gpu: 0,2", 3, r0, "1 1 0 0 | 0:1(1 1 1)")
	f("0@gpu: 0,2; pool@cpu: 1", 3, r0, "3 2 1 0 | 0:2(1 2 2)")

	// Query examples of the cascade server's own tests.
	f("0@gpu: 0; pool@cpu: 0,1; pool@disk: 0,1,2", 3, r0, "3 1 2 3 | 0:1(1 2 3)")
	f("0@gpu: 0,4; pool@cpu: 1,4; pool@disk: 3,4", 5, r0, "2 1 1 0 | 0:1(1 2 2)")
	f("pool@disk: 0", 1, r0, "1 0 0 1 | 0:0(0 0 1)")
	f("", 1, []int32{2, 0}, "0 0 0 0 | 0:0(0 0 0) 2:0(0 0 0)")
}

// The two published examples: block size 64, and the draft's block size 2.
func TestPublishedExamples(t *testing.T) {
	f := func(text string, blocks, size int, want string) {
		t.Helper()
		owners, held := scene(t, text)
		prefixes, later := spansOf(held, blocks)
		row := fold(new(Folder), prefixes, later, owners, []Instance{{0, []int32{0, 1}}})[0]
		got := fmt.Sprintf("longest_matched %d", row.Longest*size)
		for _, m := range row.Media {
			got += fmt.Sprintf(" %s %d", m.Name, m.Blocks*size)
		}
		for _, r := range row.Ranks {
			got += fmt.Sprintf(" DP[%d] %d", r.Rank, r.Blocks*size)
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
	f("1@cpu: 0,1,2,3; 0@gpu: 0,1", 4, 64,
		"longest_matched 256 GPU 128 CPU 256 DISK 0 DP[0] 128 DP[1] 256")
	f("0@gpu: 0,1; 1@gpu: 0; pool@cpu: 0,1; pool@disk: 0,2", 3, 2,
		"longest_matched 6 GPU 4 CPU 4 DISK 4 DP[0] 4 DP[1] 2")
}

func TestPoolsRanksAndOtherMedia(t *testing.T) {
	f := func(text string, blocks int, want ...string) {
		t.Helper()
		owners, held := scene(t, text)
		instances := []Instance{{3, []int32{0}}, {0, nil}, {7, []int32{1, 0}}}
		prefixes, later := spansOf(held, blocks)
		for i, row := range fold(new(Folder), prefixes, later, owners, instances) {
			if got := row.print(); got != want[i] {
				t.Errorf("%s instance %d\n got %s\nwant %s", text, instances[i].ID, got, want[i])
			}
		}
	}
	zero0, zero01 := "0 0 0 0 | 0:0(0 0 0)", "0 0 0 0 | 0:0(0 0 0) 1:0(0 0 0)"
	// A bound pool serves the instances it names only.
	f("pool[3,7]@cpu: 0,1", 2, "2 0 2 0 | 0:0(0 2 2)", "0 0 0 0 |", "2 0 2 0 | 0:0(0 2 2) 1:0(0 2 2)")
	// A pool's device blocks lengthen the prefix, not the cascade.
	f("pool[3]@gpu: 0", 1, "1 1 0 0 | 0:0(0 0 0)", "0 0 0 0 |", zero01)
	// An unregistered rank appears when it holds a block, with the cascade it
	// would have had from block 0.
	f("pool@cpu: 0,1; 5@cpu: 2; 5@disk: 2,3", 4, "2 0 2 0 | 0:0(0 2 2)", "4 0 3 2 | 5:2(0 3 4)", "2 0 2 0 | 0:0(0 2 2) 1:0(0 2 2)")
	// ... but not for a block behind the matched prefix.
	f("5@gpu: 0,2; 3.0@gpu: 0,1,2", 3, "3 3 0 0 | 0:3(3 3 3)", "1 1 0 0 | 5:1(1 1 1)", zero01)
	// Unknown media: own key, no cascade; external extends the prefix.
	f("3.0@gpu: 0; 3.0@tape: 0,1; 3.0@floppy: 1; 3.0@remote: 2", 3, "3 1 0 0 EXTERNAL:1 FLOPPY:1 TAPE:2 | 0:3(1 1 1)", "0 0 0 0 |", zero01)
	// Two owners on one medium count once.
	f("7.0@gpu: 0; 7.1@gpu: 0; 7.1@cpu: 0; pool@cpu: 0", 1, "1 0 1 0 | 0:0(0 1 1)", "1 0 1 0 |", "1 1 1 0 | 0:1(1 1 1) 1:1(1 1 1)")
	// A hole ends the prefix for one instance only.
	f("3.0@gpu: 0,2; 7.0@gpu: 0,1,2", 3, "1 1 0 0 | 0:1(1 1 1)", "0 0 0 0 |", "3 3 0 0 | 0:3(3 3 3) 1:0(0 0 0)")
	f("9.0@gpu: 0", 1, zero0, "0 0 0 0 |", zero01)
}

func TestExternalExtendsDisk(t *testing.T) {
	owners, held := scene(t, "0@gpu: 0; pool@disk: 1; pool@external: 1,2,3")
	prefixes, later := spansOf(held, 4)
	got := fold(new(Folder), prefixes, later, owners, []Instance{{0, []int32{0}}})[0].Ranks[0]
	if want := (Rank{0, 1, 1, 1, 2, 4, 0}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOwnersThatCountNowhere(t *testing.T) {
	gpu := ParseMedium("gpu")
	owners := []Owner{
		{Instance: Retired, Medium: gpu},
		{Instance: Pool, Medium: gpu, Serves: []int32{}},
		{Instance: 1 << 20, Medium: gpu},
	}
	row := fold(new(Folder), []Prefix{{0, 4}, {1, 4}, {2, 4}, {99, 4}}, []Span{{98, 1, 4}}, owners, []Instance{{0, []int32{0}}})[0]
	if got := row.print(); got != "0 0 0 0 | 0:0(0 0 0)" {
		t.Errorf("got %s", got)
	}
}

// TestSoon holds that blocks which are expected count as those of a rank's device, and those of no rank for the
// row alone.
func TestSoon(t *testing.T) {
	owners, held := scene(t, "0.0@gpu: 0; 0.0@cpu: 3; 0.1@gpu: 2,4")
	prefixes, later := spansOf(held, 6)
	rowset := NewRowSet([]Instance{{0, []int32{0, 1}}, {1, []int32{0}}})
	soon := []Soon{{Instance: 1, Rank: -1, From: 0, To: 2}, {Instance: 0, Rank: 0, From: 1, To: 3}, {Instance: 0, Rank: 1, From: 5, To: 6}}
	var f Folder
	for at, want := range map[int32]string{
		0: "6 [{0 4 3 4 4 4 0} {1 3 0 0 0 0 0}]",
		1: "2 [{0 0 0 0 0 0 0}]",
	} {
		for _, h := range f.FoldHits(prefixes, later, owners, soon, rowset) {
			if got := fmt.Sprint(h.Longest, " ", h.Ranks); h.At == at && got != want {
				t.Errorf("row %d: %s, want %s", at, got, want)
			}
		}
	}
}
