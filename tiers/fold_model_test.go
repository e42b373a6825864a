package tiers

import (
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"
)

// naive computes a row block by block from the definitions.
func naive(owners []Owner, all [][]int, blocks int, in Instance) Row {
	held := make([][]int, len(all))
	for i := range all {
		held[i] = wholeChunks(all[i], int(owners[i].Chunk))
	}
	serves := func(o Owner) bool {
		return o.Instance == Pool && (o.Serves == nil || slices.Contains(o.Serves, in.ID))
	}
	on := func(b int, yes func(Owner) bool) bool {
		for i, o := range owners {
			if slices.Contains(held[i], b) && yes(o) {
				return true
			}
		}
		return false
	}
	var row Row
	for row.Longest < blocks && on(row.Longest, func(o Owner) bool { return o.Instance == in.ID || serves(o) }) {
		row.Longest++
	}
	counts := map[string]int{}
	blocksOf := map[int32]int{}
	for _, r := range in.Ranks {
		blocksOf[r] = 0
	}
	for b := range row.Longest {
		media, ranks := map[string]bool{}, map[int32]bool{}
		for i, o := range owners {
			if slices.Contains(held[i], b) {
				if o.Instance == in.ID || serves(o) {
					media[o.Medium.Name] = true
				}
				if o.Instance == in.ID {
					ranks[o.Rank] = true
				}
			}
		}
		for m := range media {
			counts[m]++
		}
		for r := range ranks {
			blocksOf[r]++
		}
	}
	var further []string
	for m := range counts {
		if m != "GPU" && m != "CPU" && m != "DISK" {
			further = append(further, m)
		}
	}
	sort.Strings(further)
	for _, m := range append([]string{"GPU", "CPU", "DISK"}, further...) {
		row.Media = append(row.Media, MediumCount{m, counts[m]})
	}
	for r, n := range blocksOf {
		at := 0
		walk := func(tier Tier) int {
			for at < blocks && on(at, func(o Owner) bool {
				own := o.Instance == in.ID && o.Rank == r
				return o.Medium.Tier == tier && (own || tier != Device && serves(o))
			}) {
				at++
			}
			return at
		}
		row.Ranks = append(row.Ranks, Rank{r, n, walk(Device), walk(Host), walk(Disk), walk(External), 0})
	}
	slices.SortFunc(row.Ranks, func(a, b Rank) int { return int(a.Rank) - int(b.Rank) })
	return row
}

// wholeChunks returns those of ascending blocks that are in whole chunks. A chunk begins where blocks begin to
// follow each other, or behind another chunk.
func wholeChunks(held []int, chunk int) (whole []int) {
	begin := 0 // of those that follow each other
	for i := range held {
		if i > 0 && held[i] != held[i-1]+1 {
			begin = i
		}
		if n := i + 1 - begin; chunk > 1 && n%chunk == 0 {
			whole = append(whole, held[i+1-chunk:i+1]...)
		}
	}
	if chunk <= 1 {
		return held
	}
	return whole
}

func randomScene(rng *rand.Rand) (owners []Owner, held [][]int, instances []Instance, blocks int) {
	media := []string{"gpu", "gpu", "cpu", "cpu", "disk", "remote", "tape", "attic"}
	blocks = 1 + rng.IntN(12)
	for id := range int32(1 + rng.IntN(4)) {
		in := Instance{ID: id * 3}
		for range rng.IntN(4) {
			if r := int32(rng.IntN(5) - 1); !slices.Contains(in.Ranks, r) {
				in.Ranks = append(in.Ranks, r)
			}
		}
		instances = append(instances, in)
	}
	for range rng.IntN(12) {
		o := Owner{Rank: int32(rng.IntN(5) - 1), Medium: ParseMedium(media[rng.IntN(len(media))])}
		if rng.IntN(3) == 0 {
			o.Chunk = uint32(rng.IntN(4))
		}
		switch rng.IntN(5) {
		case 0:
			o.Instance = Pool
			if rng.IntN(2) == 0 {
				o.Serves = []int32{}
				for range rng.IntN(3) {
					o.Serves = append(o.Serves, int32(rng.IntN(5))*3)
				}
			}
		case 1:
			o.Instance = int32(rng.IntN(14)) - 2
		default:
			o.Instance = instances[rng.IntN(len(instances))].ID
		}
		// Mostly a prefix, sometimes with a hole, sometimes any subset.
		var blocksHeld []int
		end, hole := rng.IntN(blocks+1), rng.IntN(2*blocks)
		for b := range blocks {
			if b < end && b != hole || rng.IntN(4) == 0 {
				blocksHeld = append(blocksHeld, b)
			}
		}
		owners, held = append(owners, o), append(held, blocksHeld)
	}
	return owners, held, instances, blocks
}

func TestFoldModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var f Folder // one folder for all scenes: nothing may leak from one to the next
	for i := range 8000 {
		owners, held, instances, blocks := randomScene(rng)
		prefixes, later := spansOf(held, blocks)
		// The order of owners changes nothing.
		rng.Shuffle(len(prefixes), func(i, j int) { prefixes[i], prefixes[j] = prefixes[j], prefixes[i] })
		rng.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
		slices.SortStableFunc(later, func(a, b Span) int { return int(a.From) - int(b.From) })
		rows := fold(&f, prefixes, later, owners, instances)
		for j, in := range instances {
			want := naive(owners, held, blocks, in)
			if rows[j].Longest != want.Longest || !slices.Equal(rows[j].Media, want.Media) || !slices.Equal(rows[j].Ranks, want.Ranks) {
				t.Fatalf("seed %d scene %d instance %d\n got %+v\nwant %+v\nowners %+v\nheld %v", seed, i, in.ID, rows[j], want, owners,
					held)
			}
			if rows[j].Longest == 0 && !sameRows(rows[j:j+1], NewRowSet(instances).ZeroRows()[j:j+1]) {
				t.Fatalf("seed %d scene %d: %+v is no row of zeros", seed, i, rows[j])
			}
			for _, r := range rows[j].Ranks {
				if r.Device > r.Host || r.Host > r.Disk || r.Disk > r.External || r.External > rows[j].Longest {
					t.Fatalf("seed %d scene %d: boundaries out of order: %+v", seed, i, rows[j])
				}
			}
		}
		if again := fold(new(Folder), prefixes, later, owners, instances); !sameRows(again, rows) {
			t.Fatalf("seed %d scene %d: a used folder and a new one differ", seed, i)
		}
		// The order in which the others are asked for changes nothing.
		var byHits Folder
		hits := byHits.FoldHits(prefixes, later, owners, nil, NewRowSet(instances))
		got := make([]Row, len(instances))
		for _, j := range rng.Perm(len(instances)) {
			got[j] = byHits.RowOfOther(j)
		}
		for _, h := range hits {
			if h.Longest == 0 || h.Longest < byHits.PrefixOfOthers() {
				t.Fatalf("seed %d scene %d: a hit has %d blocks, the others %d", seed, i, h.Longest, byHits.PrefixOfOthers())
			}
			got[h.At] = h.Row
		}
		if !sameRows(got, rows) {
			t.Fatalf("seed %d scene %d: by hits\n got %+v\nwant %+v", seed, i, got, rows)
		}
	}
}

func sameRows(a, b []Row) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Longest != b[i].Longest || !slices.Equal(a[i].Media, b[i].Media) || !slices.Equal(a[i].Ranks, b[i].Ranks) {
			return false
		}
	}
	return true
}

// bigScene: instances with ranks on three media, prefixes of different length,
// and one pool; about the worst a query sees.
func bigScene(instances, ranks, runs int) ([]Prefix, []Owner, []Instance) {
	var owners []Owner
	var ins []Instance
	var prefixes []Prefix
	add := func(o Owner, upTo int) {
		if upTo > 0 {
			prefixes = append(prefixes, Prefix{uint32(len(owners)), uint32(8 * upTo)})
		}
		owners = append(owners, o)
	}
	for i := range instances {
		in := Instance{ID: int32(i)}
		for r := range ranks {
			in.Ranks = append(in.Ranks, int32(r))
			for m, medium := range []string{"gpu", "cpu", "disk"} {
				add(Owner{Instance: int32(i), Rank: int32(r), Medium: ParseMedium(medium)}, (i+r+m*5)%runs)
			}
		}
		ins = append(ins, in)
	}
	add(Owner{Instance: Pool, Rank: -1, Medium: ParseMedium("cpu")}, runs/2)
	return prefixes, owners, ins
}

func TestFoldAllocates(t *testing.T) {
	prefixes, owners, instances := bigScene(64, 2, 24)
	owners[5].Medium = ParseMedium("tape")
	owners[9].Medium = ParseMedium("attic")
	var f Folder
	rowset := NewRowSet(instances)
	run := func() {
		f.FoldHits(prefixes, nil, owners, nil, rowset)
		for i := range instances {
			f.RowOfOther(i)
		}
	}
	run()
	if n := alloctest.PerRun(20, run); n != 0 {
		t.Errorf("a warm folder allocates %v times", n)
	}
}

func BenchmarkFold(b *testing.B) {
	f := func(name string, instances, ranks, runs int) {
		b.Run(name, func(b *testing.B) {
			prefixes, owners, ins := bigScene(instances, ranks, runs)
			rowset := NewRowSet(ins)
			var f Folder
			b.ReportAllocs()
			for b.Loop() {
				f.FoldHits(prefixes, nil, owners, nil, rowset)
			}
		})
	}
	b.Run("hits=8 of 1000", func(b *testing.B) {
		prefixes, owners, ins := bigScene(8, 1, 24)
		owners = owners[:len(owners)-1] // no pool
		for i := int32(8); i < 1000; i++ {
			ins = append(ins, Instance{ID: i, Ranks: []int32{0}})
		}
		rowset := NewRowSet(ins)
		var f Folder
		b.ReportAllocs()
		for b.Loop() {
			f.FoldHits(prefixes, nil, owners, nil, rowset)
		}
	})
	f("16x1/runs=8", 16, 1, 8)
	f("128x1/runs=24", 128, 1, 24)
	f("512x4/runs=32", 512, 4, 32)
}
