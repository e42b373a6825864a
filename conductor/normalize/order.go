package normalize

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// Standardized events have numbers, which say in what order those of one stream
// happened. A stream is what one owner of blocks tells of one context, medium and rank:
//
//	batch    a5 b1 -- a4 a5      a, b: streams, --: an event without a number
//	applied  a4 b1 -- a5         a's among a's places; the second a5 is a repeat
//
// A publisher of type Standard numbers each stream apart, so a number that is left
// out is an event that was not sent. The Mooncake master numbers all its events
// together, as do others that we know too little of: there only order counts.
//
// Behind a batch that is missing, numbers begin again: the batches before it may be of
// another lifetime of the publisher, which nothing else would show.

// maxStreams bounds the streams of a source whose numbers are remembered, at some 200 bytes each. Each salt makes a stream
// of its own, so users could make any number.
const maxStreams = 4096

// maxMissing bounds what one jump of a number can add to a counter.
const maxMissing = 1 << 32

// streamKey names a stream of standardized events. What the envelope of an event leaves out comes from the registration.
type streamKey struct {
	space   scope.Context
	backend string
	medium  string // canonical, "" when not published
	rank    int32
}

// numbered is the state of one stream.
type numbered struct {
	key  streamKey
	last uint64 // number applied last, 0 for none
	top  uint64 // highest number seen

	// Of the first gap since the last clear: which of all gaps it is, 0 for none, and
	// the numbers left out.
	gap      int
	from, to uint64
}

// order has the last number of each stream of a source. The zero value is ready. It belongs to the goroutine of the source.
type order struct {
	streams map[streamKey]*numbered
	latest  *numbered // of the last event with a number
	gaps    int       // streams with a gap
	opened  int       // gaps so far
	told    *numbered // the one the finding is about
	of      []*numbered
}

// orderByID sorts the events of a batch by their numbers and removes repeats. rank is the rank of events that name none.
func (n *Normalizer) orderByID(b *events.Batch, rank int32) {
	o := &n.order
	if !o.needsOrder(b.Events) {
		return
	}
	o.of = o.of[:0]
	sorted := true
	for i := range b.Events {
		e := &b.Events[i]
		st := n.streamOf(e, rank)
		if st != nil {
			sorted = sorted && e.ID >= st.top
			st.top = max(st.top, e.ID)
		}
		o.of = append(o.of, st)
	}
	if !sorted {
		o.sortEvents(b.Events)
	}
	kept := 0
	for i, st := range o.of {
		e := &b.Events[i]
		if st != nil && !n.isNext(e, st) {
			n.countDropped(events.RepeatedEvent, 1)
			continue
		}
		if e.Kind == events.Cleared && o.gaps > 0 {
			o.endGaps(e, rankOf(e, rank), n.clearedMedium(e))
		}
		if kept < i {
			b.Events[kept] = *e
		}
		kept++
	}
	b.Events = b.Events[:kept]
	clear(o.of)
	n.reportGap()
}

// needsOrder reports whether there is anything to do: events with numbers, or a clear
// behind a gap.
func (o *order) needsOrder(list []events.Event) bool {
	for i := range list {
		e := &list[i]
		if e.Envelope && e.ID != 0 || o.gaps > 0 && e.Kind == events.Cleared {
			return true
		}
	}
	return false
}

// streamOf returns the stream of an event with a number, nil for one without, or when
// there are too many streams.
func (n *Normalizer) streamOf(e *events.Event, rank int32) *numbered {
	if !e.Envelope || e.ID == 0 {
		return nil
	}
	key := streamKey{space: n.opts.Registered.Named(e), rank: rankOf(e, rank)}
	if e.Backend != nil {
		key.backend = *e.Backend
	}
	if e.Medium != "" {
		key.medium = n.opts.Medium(e.Medium, false).Name
	}
	o := &n.order
	if o.latest != nil && o.latest.key == key {
		return o.latest
	}
	st := o.streams[key]
	if st == nil {
		if len(o.streams) >= maxStreams {
			n.opts.Findings.Report(doctor.FindingStreams,
				"events belong to more than %d streams: of those that came later neither order nor completeness is checked", maxStreams)
			return nil
		}
		if o.streams == nil {
			o.streams = make(map[streamKey]*numbered)
		}
		st = &numbered{key: key}
		o.streams[key] = st
	}
	o.latest = st
	return st
}

// sortEvents sorts the events of each stream by their numbers. They trade places only with each other, so events of other
// streams, and those without a number, stay where they are.
func (o *order) sortEvents(list []events.Event) {
	places := make(map[*numbered][]int)
	for i, st := range o.of {
		if st != nil {
			places[st] = append(places[st], i)
		}
	}
	for _, at := range places {
		own := make([]events.Event, len(at))
		for j, i := range at {
			own[j] = list[i]
		}
		slices.SortStableFunc(own, func(a, b events.Event) int { return cmp.Compare(a.ID, b.ID) })
		for j, i := range at {
			list[i] = own[j]
		}
	}
}

// isNext advances a stream to the number of an event. It returns false if the event is a repeat.
func (n *Normalizer) isNext(e *events.Event, st *numbered) bool {
	if e.ID <= st.last {
		return false
	}
	from := st.last + 1
	if st.last != 0 && e.ID > from && n.opts.Standard {
		n.countDropped(events.MissingEvents, int(min(e.ID-from, maxMissing)))
		if e.Kind != events.Cleared {
			n.order.recordGap(st, from, e.ID-1)
		}
	}
	st.last = e.ID
	return true
}

// recordGap records that the numbers from to to of a stream are missing. Only the oldest gap of a stream is kept.
func (o *order) recordGap(st *numbered, from, to uint64) {
	if st.gap == 0 {
		o.gaps++
		o.opened++
		st.gap, st.from, st.to = o.opened, from, to
	}
}

// endGaps ends the gaps of the streams whose blocks a cleared event takes away, on one medium or, if medium is "", on all.
func (o *order) endGaps(e *events.Event, rank int32, medium string) {
	for _, st := range o.streams {
		k := &st.key
		if st.gap != 0 && k.rank == rank && (medium == "" || medium == k.medium) && scope.Agrees(e.Backend, k.backend) &&
			k.space.Within(e) {
			st.gap = 0
			o.gaps--
		}
	}
}

// reportGap reports the oldest gap there is.
func (n *Normalizer) reportGap() {
	o := &n.order
	if o.told != nil && o.told.gap == 0 {
		o.told = nil
		n.opts.Findings.Withdraw(doctor.FindingEventGap)
	}
	if o.told != nil || o.gaps == 0 {
		return
	}
	for _, st := range o.streams {
		if st.gap != 0 && (o.told == nil || st.gap < o.told.gap) {
			o.told = st
		}
	}
	k := &o.told.key
	n.opts.Findings.Report(doctor.FindingEventGap,
		"events %d to %d are missing of model %q, adapter %q, salted %t, block size %d, tenant %q, backend %q, medium %q, rank %d: "+
			"blocks stored in them are not found, blocks removed in them still are, until that stream is cleared or the publisher restarts",
		o.told.from, o.told.to, k.space.Deployment.Model, k.space.Variant.Lora, k.space.Variant.Salt != "", k.space.Deployment.BlockSize,
		k.space.Deployment.Tenant, k.backend, k.medium, k.rank)
}

// Gaps reports whether a stream of standardized events left numbers out since its last
// clear.
func (n *Normalizer) Gaps() bool { return n.order.gaps > 0 }

// BatchMissing notes that a batch is missing before the next one.
func (n *Normalizer) BatchMissing() {
	for _, st := range n.order.streams {
		st.last, st.top = 0, 0
	}
}
