package history

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
)

// Summary is what a snapshot has.
type Summary struct {
	ID          uint64
	Time        time.Time
	Blocks      int
	Bytes       int64
	Sections    int
	Sources     int
	Deployments int
	// LeftOut are sources and deployments that a Sealer left out.
	LeftOut int
	// Paused is how long events waited for the moment of the snapshot.
	Paused time.Duration
}

// Sealer changes the fields of sources and deployments before they are written. It reports false
// for one that must not be written.
type Sealer func(fields []tape.Field) (sealed []tape.Field, ok bool)

// HeadWriter is an io.Writer whose HeadEnds Write calls once the sources and deployments are written, before the
// first chunk.
type HeadWriter interface{ HeadEnds() }

// bufferBytes gather small sections to one write. Chunks go out as they are: a write of a megabyte holds a processor
// up for longer than ten queries take.
const bufferBytes = 64 << 10

// writer writes one snapshot.
type writer struct {
	into io.Writer
	to   *bufio.Writer // into into
	seed uint32        // set by writeHeader
	sum  Summary
	seal Sealer

	leftOut map[partName]bool // parts of a file of registrations that are left out
	targets [][]tape.Field
	fields  []tape.Field // buffer, as payload is
	payload []byte
	// deployments are those of the image by their place, -1 for one left out.
	deployments []int
	err         error
}

// Write writes what a Conductor holds now: the sources of one deployment, or all if of is nil, and their blocks. seal may
// be nil. targets are the fields of the targets of discovery, if they are to be in it. A broken invariant is an error.
func Write(
	to io.Writer, c *conductor.Conductor, of *scope.Deployment, now time.Time, seal Sealer, targets ...[]tape.Field,
) (sum Summary, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, debug.Stack())
		}
	}()
	w := newWriter(to, now, seal)
	w.targets = targets
	return w.finish(c.Sources().Snapshots().WriteImage(of, w.writeHead, w.writeChunk))
}

// newWriter returns a writer that has written nothing.
func newWriter(to io.Writer, now time.Time, seal Sealer) *writer {
	if seal == nil {
		seal = func(f []tape.Field) ([]tape.Field, bool) { return f, true }
	}
	w := &writer{into: to, to: bufio.NewWriterSize(to, bufferBytes), seal: seal, leftOut: make(map[partName]bool)}
	w.sum.ID, w.sum.Time = rand.Uint64(), now
	return w
}

// writeHeader writes the header of a snapshot that has a version.
func (w *writer) writeHeader(version uint32) {
	h := header{version: version, id: w.sum.ID, time: w.sum.Time}
	w.seed = h.seed()
	w.writeBytes(h.encode())
}

// finish writes the end, unless something has failed before. err is that of what came before the end.
func (w *writer) finish(err error) (Summary, error) {
	if err == nil {
		w.writeFields(section{kind: kindEnd}, []tape.Field{
			{Name: fieldSections, Value: strconv.Itoa(w.sum.Sections)}, {Name: fieldBlocks, Value: strconv.Itoa(w.sum.Blocks)},
		})
		err = w.err
	}
	if err == nil {
		err = w.to.Flush()
	}
	return w.sum, err
}

// writeBytes writes bytes, unless a write has failed before.
func (w *writer) writeBytes(b []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(b)
		w.sum.Bytes += int64(len(b))
	}
}

// writeSection writes a section.
func (w *writer) writeSection(s section, payload []byte) {
	b := s.encode(w.seed, payload)
	w.writeBytes(b[:])
	w.writeBytes(payload)
	w.sum.Sections++
	w.sum.Blocks += int(s.blocks)
}

// writeFields writes a section of fields.
func (w *writer) writeFields(s section, fields []tape.Field) {
	w.payload = tape.AppendFields(w.payload[:0], fields...)
	w.writeSection(s, w.payload)
}

// writeHead writes the sources and deployments.
func (w *writer) writeHead(img *image.Head) error {
	w.sum.Paused = img.Paused
	w.writeHeader(w.versionOf(img))
	w.writeFields(section{kind: kindHead}, []tape.Field{
		{Name: fieldSeed, Value: strconv.FormatUint(img.HashSeed, 10)}, {Name: fieldSources, Value: strconv.Itoa(len(img.Sources))},
	})
	for i := range img.Sources {
		w.fields = img.Sources[i].AppendFields(w.fields[:0])
		sealed, ok := w.seal(w.fields)
		if !ok {
			w.sum.LeftOut++
			sealed = nil // chunks and holders count it
		}
		w.sum.Sources++
		w.writeFields(section{kind: kindSource}, sealed)
	}
	w.writeSealed(kindTarget, w.targets)
	w.deployments = slices.Repeat([]int{-1}, len(img.Deployments))
	for i := range img.Deployments {
		c := &img.Deployments[i]
		sealed, ok := w.seal(c.Fields())
		if !ok {
			w.sum.LeftOut++
			continue
		}
		n := w.sum.Deployments
		w.deployments[i] = n
		w.sum.Deployments++
		w.writeFields(section{kind: kindDeployment, deployment: uint32(n)}, sealed)
		for _, number := range slices.Sorted(maps.Keys(c.Identities)) {
			sealed, ok := w.seal(image.IdentityFields(number, c.Identities[number]))
			if !ok {
				w.sum.LeftOut++
				delete(c.Identities, number)
				continue
			}
			w.writeFields(section{kind: kindIdentity, deployment: uint32(n)}, sealed)
		}
		for i := range c.Holders {
			w.fields = c.Holders[i].AppendFields(w.fields[:0])
			w.writeFields(section{kind: kindHolder, deployment: uint32(n)}, w.fields)
		}
	}
	if split, ok := w.into.(HeadWriter); ok && w.err == nil {
		w.err = w.to.Flush()
		split.HeadEnds()
	}
	return w.err
}

// versionOf returns the oldest version whose readers know all that an image and the targets have.
func (w *writer) versionOf(img *image.Head) uint32 {
	version := image.Version(w.targets...)
	for i := range img.Sources {
		w.fields = img.Sources[i].AppendFields(w.fields[:0])
		version = max(version, image.Version(w.fields))
	}
	for i := range img.Deployments {
		holders := img.Deployments[i].Holders
		for k := range holders {
			w.fields = holders[k].AppendFields(w.fields[:0])
			version = max(version, image.Version(w.fields))
		}
	}
	return version
}

// writeSealed writes sections of a kind.
func (w *writer) writeSealed(kind uint16, all [][]tape.Field) {
	for _, f := range all {
		if sealed, ok := w.seal(f); ok {
			w.writeFields(section{kind: kind}, sealed)
		} else {
			w.sum.LeftOut++
		}
	}
}

// writeChunk writes a chunk of a deployment.
func (w *writer) writeChunk(deployment int, kind index.ChunkKind, blocks int, bytes []byte) error {
	if n := w.deployments[deployment]; n >= 0 {
		w.writeSection(section{kind: kindChunk + uint16(kind), deployment: uint32(n), blocks: uint32(blocks)}, bytes)
	}
	return w.err
}
