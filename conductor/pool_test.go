package conductor_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/internal/must"
)

// world is what engines and a pool hold, by path and salt. Engines A and B hash alike,
// so the pool's objects are theirs in common; C hashes in its own way.
type world struct {
	device    map[string]map[string]bool // engine -> path@salt
	announced map[string]bool            // path@salt/by any engine that hashes so has ever announced
	objects   map[string]map[string]bool // medium -> path@salt/by#shard
	profile   bool                       // it is known how A and B hash
}

// whole reports whether the pool has all shards of a block on a medium.
func (w *world) whole(medium, block string) bool {
	for _, by := range []string{"/A", "/C"} {
		b := block + by
		if (w.profile && by == "/A" || w.announced[b]) && w.objects[medium][b+"#0"] && w.objects[medium][b+"#1"] {
			return true
		}
	}
	return false
}

// row is what an engine can serve of a path, in blocks.
func (w *world) row(engine, path, salt string) (longest, gpu, cpu, disk int) {
	names := strings.Split(path, "/")
	for i := range names {
		block := strings.Join(names[:i+1], "/") + "@" + salt
		g, c, d := w.device[engine][block], w.whole("cpu", block), w.whole("disk", block)
		if !g && !c && !d {
			break
		}
		for n, on := range map[*int]bool{&gpu: g, &cpu: c, &disk: d} {
			if on {
				*n++
			}
		}
		longest++
	}
	return longest, gpu, cpu, disk
}

// TestPoolModel: whatever the order in which engines announce and evict blocks and a
// pool takes and drops their objects, answers say what both hold.
func TestPoolModel(t *testing.T) {
	worlds := times(60)
	for seed := range uint64(worlds) {
		synctest.Test(t, func(t *testing.T) { runPoolWorld(t, seed) })
	}
}

func runPoolWorld(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	b := newBench()
	defer b.conductor.Close()
	w := world{device: map[string]map[string]bool{"A": {}, "B": {}, "C": {}}, announced: map[string]bool{},
		objects: map[string]map[string]bool{"cpu": {}, "disk": {}}}
	var log []string
	run := func(format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		log = append(log, line)
		if out := b.run(line); strings.Contains(out, "error") {
			t.Fatalf("seed %d: %s: %s", seed, line, out)
		}
	}
	engines := []string{"A", "B", "C"}
	words := map[string]string{"/A": "hashes=A", "/C": "hashes=C"}
	profile := ""
	if w.profile = seed%2 == 1; w.profile {
		words["/A"], profile = "hashed=sha256/7", " profile=sha256/7"
	}
	run("register A%s", profile)
	run("register B%s", profile)
	run("register C")
	run("register pool type=Mooncake replay=no")
	// Every shard has been seen: what a block consists of is known.
	for _, medium := range []string{"cpu", "disk"} {
		for tp := range 2 {
			run("put pool path=zz medium=%s tp=%d", medium, tp)
		}
	}
	paths := []string{"a", "a/b", "a/b/c", "a/x"}
	salts := []string{"", "s"}
	for range 200 {
		path, salt := paths[rng.IntN(len(paths))], salts[rng.IntN(2)]
		engine := engines[rng.IntN(3)]
		hashing := "/A"
		if engine == "C" {
			hashing = "/C"
		}
		by := words[hashing]
		names := strings.Split(path, "/")
		block := path + "@" + salt
		medium := []string{"cpu", "disk"}[rng.IntN(2)]
		with := ""
		if salt != "" {
			with = " salt=" + salt
		}
		switch rng.IntN(8) {
		case 0, 1: // the whole prompt
			run("store %s path=%s %s%s", engine, path, by, with)
			for i := range names {
				p := strings.Join(names[:i+1], "/") + "@" + salt
				w.device[engine][p], w.announced[p+hashing] = true, true
			}
		case 2:
			if w.device[engine][block] && !slices.ContainsFunc(paths, func(p string) bool {
				return strings.HasPrefix(p, path+"/") && w.device[engine][p+"@"+salt]
			}) {
				run("remove %s path=%s from=%d remaining=0 %s%s", engine, path, len(names)-1, by, with)
				delete(w.device[engine], block)
			}
		case 3, 4, 5:
			tp := rng.IntN(2)
			run("put pool path=%s from=%d tp=%d medium=%s %s%s", path, len(names)-1, tp, medium, by, with)
			w.objects[medium][fmt.Sprintf("%s%s#%d", block, hashing, tp)] = true
		case 6:
			tp := rng.IntN(2)
			run("drop pool path=%s from=%d tp=%d medium=%s %s%s", path, len(names)-1, tp, medium, by, with)
			delete(w.objects[medium], fmt.Sprintf("%s%s#%d", block, hashing, tp))
		case 7:
			switch rng.IntN(4) {
			case 0:
				run("clear %s", engine)
				clear(w.device[engine])
			case 1:
				run("clear pool backend=b medium=%s", medium)
				clear(w.objects[medium])
				for tp := range 2 {
					run("put pool path=zz medium=%s tp=%d", medium, tp)
				}
			}
		}
		path = paths[rng.IntN(len(paths))]
		line := fmt.Sprintf("query path=%s salt=%s", path, salt)
		for _, text := range strings.Split(strings.TrimSpace(b.run(line)), "\n") {
			part := strings.SplitN(text, " ", 3)
			var got struct{ Longest_matched, GPU, CPU, DISK int }
			must.Succeed(t, json.Unmarshal([]byte(part[2]), &got))
			longest, gpu, cpu, disk := w.row(part[1], path, salt)
			if got.Longest_matched != 16*longest || got.GPU != 16*gpu || got.CPU != 16*cpu || got.DISK != 16*disk {
				t.Fatalf("seed %d: %s\n%s\ngot %s\nwant %d %d %d %d blocks", seed, strings.Join(log, "\n"), line, text, longest, gpu, cpu,
					disk)
			}
		}
	}
	for _, err := range b.conductor.Check() {
		t.Fatalf("seed %d: %v", seed, err)
	}
}
