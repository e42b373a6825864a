package tape

import "time"

// Run is one life of the recording server, as far as the tape has it.
type Run struct {
	ID          uint64
	First, Last time.Time // of the first record and of the last one
	Sources     int       // keys
	Batches     int       // with events
	Cut         bool      // sources were registered before the first record there is
	End         Position  // of the last record

	begin uint64 // first segment
}

// Runs collects the runs of a tape from its records. The zero value has none.
type Runs struct {
	List []Run // oldest first

	keys map[uint32]string // of the last run: printed keys by number of the source
	seen map[string]bool   // of the last run: printed keys
}

// AddRecord adds the next record of the tape.
func (r *Runs) AddRecord(rec *Record) {
	if n := len(r.List); n == 0 || r.List[n-1].ID != rec.Run {
		r.List = append(r.List, Run{ID: rec.Run, First: rec.Time, begin: rec.At.Segment})
		r.keys, r.seen = make(map[uint32]string), make(map[string]bool)
	}
	run := &r.List[len(r.List)-1]
	run.Last, run.End = rec.Time, rec.At
	switch rec.Kind {
	case Batch:
		run.Batches++
	case Registered:
		run.Cut = run.Cut || rec.Flags&Standing != 0 && rec.At.Segment == run.begin
		if _, known := r.keys[rec.Source]; known {
			return
		}
		if fields, err := rec.Fields(); err == nil {
			key := Value(fields, FieldSource)
			r.keys[rec.Source], r.seen[key] = key, true
			run.Sources = len(r.seen)
		}
	}
}

// describeBegin says when the first run began.
func (r *Runs) describeBegin() string {
	if len(r.List) == 0 {
		return "it holds no record that can be read"
	}
	return "it begins at " + r.List[0].First.Format(time.RFC3339Nano)
}
