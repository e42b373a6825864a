package dynamo

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/server"
	"example.com/conductor/tiers"
)

// A dump has a slot for every partition. Device blocks come first, then each lower
// tier; parents come before children of the same worker and tier.
//
//	{"model:group": {"block_size": 16, "model_name": "model", "routing_group": "group", "events": [RouterEvent, ...]}, ...}
//
// or, for Accept: application/x-ndjson, a line for every event:
//
//	{"key": "model:group", "block_size": 16, "model_name": "model", "routing_group": "group", "event": RouterEvent}
//
// Both are written while the snapshot is walked: what waits to be sent is never more
// than some kilobytes, the copy of the index takes some 60 bytes a block.
// Every block has one name, because Dynamo's index keeps one and refuses children under
// another. Blocks that a RouterEvent cannot name are left out: those of string ids, of
// pools, of media of their own, without tokens or with an unknown parent.
//
// A partition of several block sizes, which Dynamo does not know, has a slot for
// each, the larger ones under "model:group@size". So has one whose model and group
// make the same key as another's: "a:b" and "c", "a" and "b:c".

// dump writes what all workers hold: GET /dump. Each dump that is under way holds a
// copy of the index it walks, so there are never more than maxDumps; others wait for dumpWait.
func (d *Dialect) dump(g *gin.Context) {
	if !d.conductor.Catalog().KeepsClientHashes() {
		fail(g, refusef(http.StatusNotImplemented, "local hashes are not kept: index.local_hashes is false"))
		return
	}
	if d.conductor.Ready().Recovering {
		fail(g, refusef(http.StatusServiceUnavailable, "a recovery is under way, what is here is not whole"))
		return
	}
	if g.Request.Method == http.MethodHead {
		g.Status(http.StatusOK)
		return
	}
	flow := server.FlowOf(g)
	if err := d.dumps.Enter(g.Request.Context(), flow); err != nil {
		g.Header("Retry-After", "5") // seconds
		fail(g, refusef(http.StatusServiceUnavailable, "%d dumps are under way, and none of them ended within %s", maxDumps, dumpWait))
		return
	}
	defer d.dumps.Leave(flow)
	w := dumper{g: g, begun: time.Now(), snap: access.View(d.conductor, g).Snapshot(), ids: make(map[slot]uint64)}
	w.snap.Unify(plainHolder)
	w.name()
	if strings.Contains(g.GetHeader("Accept"), ndjson) {
		g.Header("Content-Type", ndjson)
		g.Status(http.StatusOK)
		w.lines()
		return
	}
	g.Header("Content-Type", "application/json")
	g.Status(http.StatusOK)
	w.object()
}

// Bounds of dumps.
const (
	maxDumps    = 4
	dumpWait    = 10 * time.Second // for a slot: a peer asks another server sooner than it gives up
	slowestRead = 30 * time.Second // that a client may take for a part before the dump is given up
	// leastRate is how fast a client must take a dump after slowestRead, in bytes a second: a
	// client that trickles holds a slot and a copy of the index.
	leastRate = 256 << 10
)

// ndjson is the type of a dump with one event a line.
const ndjson = "application/x-ndjson"

// flushAt is how much of a dump is gathered before it is sent.
const flushAt = 64 << 10

// dumper writes one dump. It stops at the first write that fails.
type dumper struct {
	g      *gin.Context
	snap   *ingest.Snapshot
	slots  []slot          // by partition and size
	keys   map[slot]string // their names
	ids    map[slot]uint64 // events so far
	buf    []byte
	begun  time.Time
	sent   int64 // bytes
	failed bool
}

// name names the slots: the smallest size of each partition first, so that what
// Dynamo knows has Dynamo's key.
func (w *dumper) name() {
	var smallest, larger []slot
	for p, sizes := range w.snap.Partitions() {
		for i, size := range sizes {
			if i == 0 {
				smallest = append(smallest, slot{p, size})
			} else {
				larger = append(larger, slot{p, size})
			}
		}
	}
	slices.SortFunc(smallest, slot.compare)
	slices.SortFunc(larger, slot.compare)
	taken := make(map[string]bool)
	w.keys = make(map[slot]string)
	name := func(at slot, key string) {
		for taken[key] {
			key += "@" + strconv.Itoa(at.blockSize)
		}
		w.keys[at], taken[key] = key, true
	}
	for _, at := range smallest {
		name(at, at.partition.Model+":"+at.partition.Tenant)
	}
	for _, at := range larger {
		name(at, at.partition.Model+":"+at.partition.Tenant+"@"+strconv.Itoa(at.blockSize))
	}
	w.slots = append(smallest, larger...)
	slices.SortFunc(w.slots, slot.compare)
}

// head appends what a slot or a line begins with.
func (w *dumper) head(at slot) {
	w.buf = strconv.AppendInt(append(w.buf, `"block_size":`...), int64(at.blockSize), 10)
	w.buf = body.AppendString(append(w.buf, `,"model_name":`...), at.partition.Model, false)
	w.buf = body.AppendString(append(w.buf, `,"routing_group":`...), at.partition.Tenant, false)
}

// lines writes the dump as NDJSON.
func (w *dumper) lines() {
	w.walk(w.snap, func(st *ingest.Stored) {
		at := slot{st.Shard, st.BlockSize}
		w.buf = body.AppendString(append(w.buf, `{"key":`...), w.keys[at], false)
		w.buf = append(w.buf, ',')
		w.head(at)
		w.buf = append(w.buf, `,"event":`...)
		w.event(at, st)
		w.buf = append(w.buf, "}\n"...)
	})
	w.send(0)
}

// object writes the dump as one object.
func (w *dumper) object() {
	w.buf = append(w.buf, '{')
	for i, at := range w.slots {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = append(body.AppendString(w.buf, w.keys[at], false), ":{"...)
		w.head(at)
		w.buf = append(w.buf, `,"events":[`...)
		first := true
		w.walk(w.snap.Of(at.partition, at.blockSize), func(st *ingest.Stored) {
			w.buf = comma(w.buf, &first)
			w.event(at, st)
		})
		w.buf = append(w.buf, ']')
		w.buf = append(w.buf, '}')
	}
	w.buf = append(w.buf, '}')
	w.send(0)
}

// walk calls f for what the dump shows of a snapshot, tier by tier.
func (w *dumper) walk(snap *ingest.Snapshot, f func(*ingest.Stored)) {
	for tier := tiers.Device; tier <= tiers.Other && !w.failed; tier++ {
		snap.Walk(tier, func(st *ingest.Stored) bool {
			if !plainly(st) {
				return true
			}
			f(st)
			return w.send(flushAt)
		})
	}
}

// event appends an event, numbered within its slot.
func (w *dumper) event(at slot, st *ingest.Stored) {
	w.buf = appendEvent(w.buf, st, w.ids[at])
	w.ids[at]++
}

// send writes what has been gathered if it is more than some bytes, and reports
// whether the client still takes it.
func (w *dumper) send(more int) bool {
	if w.failed || len(w.buf) <= more {
		return !w.failed
	}
	connection := http.NewResponseController(w.g.Writer)
	_ = connection.SetWriteDeadline(time.Now().Add(slowestRead)) // not every writer has one
	_, err := w.g.Writer.Write(w.buf)
	_ = connection.SetWriteDeadline(time.Time{})
	w.sent += int64(len(w.buf))
	taken := time.Since(w.begun) - slowestRead
	w.failed = err != nil || w.g.Request.Context().Err() != nil || taken > 0 && float64(w.sent) < leastRate*taken.Seconds()
	w.buf = w.buf[:0]
	return !w.failed
}

func comma(dst []byte, first *bool) []byte {
	if *first {
		*first = false
		return dst
	}
	return append(dst, ',')
}
