package history

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/events/tape"
)

// Registrations are what a server keeps of its registrations, or what has changed of them.
type Registrations struct {
	HashSeed uint64
	Sources  []kept.Part
	Targets  []kept.Part // of discovery
	Changes  []kept.Part // of clients, that wait for the store
}

// kinds returns the parts with the kinds of their sections, in the order in which they are written.
func (r *Registrations) kinds() [3]struct {
	kind uint16
	all  []kept.Part
} {
	return [...]struct {
		kind uint16
		all  []kept.Part
	}{{kindSource, r.Sources}, {kindTarget, r.Targets}, {kindChange, r.Changes}}
}

// A RegistrationsLog is a file of registrations to which changes are appended:
//
//	header, head, all parts, end | changed parts, end | changed parts, end | ...
//
// A part takes the place of an earlier one with its kind and name. What comes behind the last end was being written when the
// server was killed, and nobody was told that it lasts.
//
// After an error the file is of no more use, because nobody knows what the disk has of it. A RegistrationsLog is used by one
// goroutine.
type RegistrationsLog struct{ w *writer }

// WriteRegistrations writes registrations to which nothing is appended, in the oldest version whose readers know all of them.
func WriteRegistrations(to io.Writer, all Registrations, now time.Time, seal Sealer) (Summary, error) {
	w := newWriter(to, now, seal)
	version := uint32(oldest)
	for _, k := range all.kinds() {
		for _, p := range k.all {
			version = max(version, image.Version(p.Fields))
		}
	}
	w.writeHeader(version)
	w.writeRegistrationsHead(&all)
	w.writeParts(&all, false)
	return w.finish(w.err)
}

// BeginRegistrationsLog writes registrations to which changes can be appended.
func BeginRegistrationsLog(to io.Writer, all Registrations, now time.Time, seal Sealer) (*RegistrationsLog, Summary, error) {
	w := newWriter(to, now, seal)
	w.writeHeader(newest)
	w.writeRegistrationsHead(&all)
	w.writeParts(&all, true)
	sum, err := w.finish(w.err)
	return &RegistrationsLog{w}, sum, err
}

// Append appends changed parts. The Summary is that of the whole file, and LeftOut has the parts that are left out now.
func (l *RegistrationsLog) Append(changed Registrations) (Summary, error) {
	l.w.writeParts(&changed, true)
	return l.w.finish(l.w.err)
}

func (w *writer) writeRegistrationsHead(all *Registrations) {
	w.writeFields(section{kind: kindHead}, []tape.Field{
		{Name: fieldSeed, Value: strconv.FormatUint(all.HashSeed, 10)}, {Name: fieldSources, Value: strconv.Itoa(len(all.Sources))},
	})
}

// writeParts writes parts. If they are named, later ones can take their place, and one that must not be written leaves.
func (w *writer) writeParts(all *Registrations, named bool) {
	for _, k := range all.kinds() {
		for _, p := range k.all {
			sealed, ok := w.seal(p.Fields)
			w.noteLeftOut(partName{k.kind, p.Name}, p.Fields != nil && !ok)
			switch {
			case ok && p.Fields != nil && named:
				w.fields = append(append(w.fields[:0], tape.Field{Name: fieldPart, Value: p.Name}), sealed...)
				w.writeFields(section{kind: k.kind}, w.fields)
			case ok && p.Fields != nil:
				w.writeFields(section{kind: k.kind}, sealed)
			case named:
				w.writeFields(section{kind: kindGone}, []tape.Field{
					{Name: fieldKind, Value: strconv.Itoa(int(k.kind))}, {Name: fieldPart, Value: p.Name},
				})
			}
		}
	}
}

// noteLeftOut notes whether a part is left out now. A later part of its name may not be, or may be none at all.
func (w *writer) noteLeftOut(name partName, leftOut bool) {
	if leftOut {
		w.leftOut[name] = true
	} else {
		delete(w.leftOut, name)
	}
	w.sum.LeftOut = len(w.leftOut)
}

// Tail is what a file of registrations has behind its last end: a write that a kill has cut off.
type Tail struct {
	Bytes   int64 // 0 if there is none
	Damaged bool  // it is not merely cut off
}

// ReadRegistrations reads a file of registrations, with the changes that were appended to it. how has no For and no MaxHead.
func ReadRegistrations(from io.Reader, how Reading) (Summary, Tail, error) {
	all := &countingReader{from: from}
	r := newReader(all, how)
	r.parts = &parts{at: make(map[partName]int), file: all}
	err := r.readAll()
	return r.sum, r.parts.tail, err
}

type countingReader struct {
	from io.Reader
	n    int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.n += int64(n)
	return n, err
}

// parts gathers the parts of a file of registrations.
type parts struct {
	all     []part
	at      map[partName]int // places in all
	waiting []part           // for the end behind them
	file    *countingReader
	tail    Tail
}

type part struct {
	kind   uint16
	name   string       // "" if nothing can take its place
	fields []tape.Field // nil: it is gone
}

type partName struct {
	kind uint16
	name string
}

// add adds a part, which counts once its end has come.
func (p *parts) add(kind uint16, f []tape.Field) error {
	next := part{kind: kind, name: tape.Value(f, fieldPart), fields: f}
	if kind == kindGone {
		n, err := strconv.ParseUint(tape.Value(f, fieldKind), 10, 16)
		if err != nil {
			return fmt.Errorf("field %s: %w", fieldKind, err)
		}
		next.kind, next.fields = uint16(n), nil
	}
	p.waiting = append(p.waiting, next)
	return nil
}

// commit lets the parts that wait for an end count.
func (p *parts) commit() {
	for _, next := range p.waiting {
		name := partName{next.kind, next.name}
		if at, has := p.at[name]; has && next.name != "" {
			p.all[at] = next
			continue
		}
		p.at[name] = len(p.all)
		p.all = append(p.all, next)
	}
	p.waiting = nil
}

// readAppended reads the changes behind the first end, and those of each further end. Where they are not whole, it stops
// behind the last end.
func (r *reader) readAppended() error {
	p := r.parts
	for p.commit(); ; p.commit() {
		whole, sum := r.offset, r.sum
		for r.ended = false; !r.ended; {
			err := r.readNext()
			if err == nil {
				continue
			}
			if p.tail.Damaged = errors.As(err, new(*damageError)); !p.tail.Damaged && !errors.Is(err, errTorn) {
				return err
			}
			_, err = io.Copy(io.Discard, r.from)
			p.tail.Bytes, p.waiting, r.sum = p.file.n-whole, nil, sum
			return err
		}
	}
}

// passParts gives the parts of a file of registrations to what they are of.
func (r *reader) passParts() error {
	for _, p := range r.parts.all {
		switch {
		case p.fields == nil:
		case p.kind == kindSource:
			if err := r.addSource(p.fields); err != nil {
				return err
			}
		case p.kind == kindTarget:
			r.passOpened(p.fields, r.how.Target)
		case p.kind == kindChange:
			r.passOpened(p.fields, r.how.Change)
		}
	}
	return nil
}
