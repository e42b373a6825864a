package admin

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/tape"
)

const (
	// journalType is the media type of a segment, see docs/journal.md.
	journalType = "application/vnd.conductor.journal"
	// nextHeader is the field next of an answer that is a segment.
	nextHeader = "Conductor-Next"
	// snapshotPath has what batches led to that the journal has no more.
	snapshotPath = "/admin/snapshot"

	defaultEvents, maxEvents = 1000, 10_000 // records of an answer
)

// eventsRow is the answer of /admin/events. First and Last are null before the first batch
// of the epoch.
type eventsRow struct {
	Source  string     `json:"source"`
	Epoch   uint64     `json:"epoch"`
	First   *uint64    `json:"first"`
	Last    *uint64    `json:"last"`
	Batches []batchRow `json:"batches"`
	Next    *uint64    `json:"next,omitempty"`
}

// batchRow is a batch, or a run of batches without events up to Seq.
type batchRow struct {
	Seq      uint64    `json:"seq"`
	Epoch    uint64    `json:"epoch"`
	Time     time.Time `json:"time"`
	Replayed bool      `json:"replayed"`
	Idle     bool      `json:"idle,omitempty"`
	Payload  []byte    `json:"payload,omitempty"`
}

// rangeError is the answer to a range that is not there.
type rangeError struct {
	reply.ErrorBody
	Source   string  `json:"source"`
	Epoch    uint64  `json:"epoch"`
	First    *uint64 `json:"first"`
	Last     *uint64 `json:"last"`
	Snapshot string  `json:"snapshot,omitempty"`
}

// events returns the batches that a source applied last:
// GET /admin/events?source=KEY&from=SEQ&to=SEQ&epoch=N&limit=N.
func (a *api) events(g *gin.Context) (any, error) {
	source := g.Query("source")
	if source == "" {
		return nil, invalid.Field("source", "missing", "source is required, as instance|tenant|rank")
	}
	q, err := rangeOf(g)
	if err != nil {
		return nil, err
	}
	e, span, err := access.View(a.conductor, g).Inspect().AppliedBatches(source, q)
	if errors.Is(err, tape.ErrGone) || errors.Is(err, tape.ErrTooNew) {
		return refuseRange(source, q, span, err), nil
	} else if err != nil {
		return nil, err
	}
	if server.Prefers(g.Request.Header, []string{journalType}, []string{"application/json"}) {
		if e.More {
			g.Header(nextHeader, strconv.FormatUint(e.Next, 10))
		}
		return reply.File{ContentType: journalType, Bytes: e.Segment}, nil
	}
	return eventsOf(source, e, span)
}

// rangeOf reads the parameters of a range.
func rangeOf(g *gin.Context) (q tape.Range, err error) {
	take := func(name string, least, most, otherwise uint64) uint64 {
		n, failed := reply.ReadNumber(g, name, least, most, otherwise)
		if err == nil {
			err = failed
		}
		return n
	}
	_, from := g.GetQuery("from")
	q = tape.Range{
		Epoch: take("epoch", 1, math.MaxUint64, 0), Oldest: !from,
		From: take("from", 0, math.MaxUint64, 0), To: take("to", 0, math.MaxUint64, math.MaxUint64),
		Limit: int(take("limit", 1, maxEvents, defaultEvents)),
	}
	if err == nil && q.To < q.From {
		err = invalid.Field("to", "out_of_range", "to must not be less than from, got %d and %d", q.To, q.From)
	}
	return q, err
}

// bounds returns the numbers of a span, nil if there are none.
func bounds(s tape.Span) (first, last *uint64) {
	if !s.Any {
		return nil, nil
	}
	return &s.First, &s.Last
}

// refuseRange says why a range is not there.
func refuseRange(source string, q tape.Range, span tape.Span, why error) reply.Result {
	r := rangeError{ErrorBody: reply.ErrorBody{Reason: "gone", Field: "from"}, Source: source, Epoch: span.Epoch, Snapshot: snapshotPath}
	r.First, r.Last = bounds(span)
	if q.Epoch != 0 && q.Epoch != span.Epoch {
		r.Field = "epoch"
	}
	status, there := http.StatusGone, "it has none"
	if span.Any {
		there = fmt.Sprintf("it has %d to %d of epoch %d", span.First, span.Last, span.Epoch)
	}
	if errors.Is(why, tape.ErrTooNew) {
		status, r.Reason, r.Snapshot = http.StatusRequestedRangeNotSatisfiable, "too_new", ""
	}
	r.Error = fmt.Sprintf("%s: %s: %s", source, why, there)
	return reply.Result{Status: status, Body: r}
}

// eventsOf reads the batches of an excerpt.
func eventsOf(source string, e tape.Excerpt, span tape.Span) (any, error) {
	row := eventsRow{Source: source, Epoch: span.Epoch, Batches: []batchRow{}}
	row.First, row.Last = bounds(span)
	if e.More {
		row.Next = &e.Next
	}
	records := tape.Scan(e.Segment)
	for rec := (tape.Record{}); ; {
		if err := records.Next(&rec); err == io.EOF {
			return row, nil
		} else if err != nil {
			return nil, err
		}
		if rec.Kind == tape.Batch || rec.Kind == tape.Idle {
			row.Batches = append(row.Batches, batchRow{
				rec.Seq, rec.Epoch, rec.Time, rec.Flags&tape.Replayed != 0, rec.Kind == tape.Idle, rec.Payload,
			})
		}
	}
}
