package history

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/tape"
)

// MaxHead bounds the names in snapshots of others: 10,000 sources take some 10 MB, as many salts 2 MB.
const MaxHead = 256 << 20

// Opener undoes a Sealer. It reports false for fields that it cannot open.
type Opener func(sealed []tape.Field) (fields []tape.Field, ok bool)

// Reading is how a snapshot is brought back.
type Reading struct {
	// Into takes the sources and blocks.
	Into *ingest.Recovery
	// For, if set, makes Into for a snapshot of a hash seed.
	For func(seed uint64) *ingest.Recovery
	// Open opens sealed fields; nil takes them as they are.
	Open Opener
	// Sources, if set, sees the sources before blocks come, and may change what they say.
	Sources func([]image.Source)
	// Target, if set, sees the fields of each target of discovery.
	Target func([]tape.Field)
	// Change, if set, sees the fields of each change that waits for the store.
	Change func([]tape.Field)
	// MaxHead bounds the bytes before the first chunk, which stay in memory; 0 is no bound.
	MaxHead int64
}

// reader reads one snapshot.
type reader struct {
	how         Reading
	from        *bufio.Reader
	seed        uint32
	offset      int64
	sum         Summary
	head        int64 // bytes of the sections before chunks
	img         image.Head
	deployments map[uint32]int
	begun       bool // img was taken
	loading     *ingest.Loading
	current     uint32 // deployment of loading
	done        map[uint32]bool
	ended       bool
	payload     []byte // room for that of a section
	parts       *parts // nil for a snapshot, which is read as it comes
}

// Read brings a snapshot back. After an error the recovery is to be undone.
func Read(from io.Reader, how Reading) (Summary, error) {
	r := newReader(from, how)
	err := r.readAll()
	return r.sum, err
}

func newReader(from io.Reader, how Reading) *reader {
	if how.Open == nil {
		how.Open = func(f []tape.Field) ([]tape.Field, bool) { return f, true }
	}
	return &reader{
		how: how, from: bufio.NewReaderSize(from, bufferBytes),
		deployments: make(map[uint32]int), done: make(map[uint32]bool),
	}
}

// readAll reads the header and all sections.
func (r *reader) readAll() error {
	b := make([]byte, headerSize)
	n, err := io.ReadFull(r.from, b)
	h, headErr := decodeHeader(b[:n])
	if headErr != nil {
		return causeOf(err, headErr)
	}
	r.offset, r.seed = headerSize, h.seed()
	r.sum.ID, r.sum.Time = h.id, h.time
	for !r.ended {
		if err := r.readNext(); err != nil {
			return err
		}
	}
	if r.parts != nil {
		if err := r.readAppended(); err != nil {
			return err
		}
		if err := r.passParts(); err != nil {
			return err
		}
	}
	if err := r.beginChunks(); err != nil { // a snapshot without blocks
		return err
	}
	if err := r.finishDeployment(); err != nil {
		return err
	}
	if r.how.For != nil {
		r.how.Into.Done()
	}
	return nil
}

// readNext reads the next section and gives it to what it is of.
func (r *reader) readNext() error {
	s, payload, err := r.readSection(r.payload)
	if err != nil {
		return err
	}
	r.payload = payload
	if err := r.handleSection(s, payload); err != nil {
		if r.sum.Sections++; errors.As(err, new(*invalid.FieldError)) {
			return err
		}
		return &damageError{Section: r.sum.Sections - 1, Offset: r.offset, Err: err}
	}
	r.sum.Sections++
	r.sum.Blocks += int(s.blocks)
	r.offset += sectionSize + int64(len(payload))
	r.sum.Bytes = r.offset
	return nil
}

// causeOf returns the error of a connection or disk, unless it is the end of the bytes.
func causeOf(read, other error) error {
	if read == nil || errors.Is(read, io.EOF) || errors.Is(read, io.ErrUnexpectedEOF) {
		return other
	}
	return read
}

// readSection reads a section, and its payload into room.
func (r *reader) readSection(room []byte) (s section, payload []byte, err error) {
	var b [sectionSize]byte
	if _, err := io.ReadFull(r.from, b[:]); err != nil {
		return s, nil, causeOf(err, errTorn)
	}
	if s = decodeSection(b[:]); s.length > maxSection {
		return s, nil, &damageError{r.sum.Sections, r.offset, fmt.Errorf("it claims %d bytes", s.length)}
	}
	for payload = room[:0]; len(payload) < int(s.length); { // memory comes with the bytes
		n := min(int(s.length), max(2*len(payload), bufferBytes))
		if cap(payload) < n {
			payload = append(make([]byte, 0, n), payload...)
		}
		have := len(payload)
		payload = payload[:n]
		if _, err := io.ReadFull(r.from, payload[have:]); err != nil {
			return s, nil, causeOf(err, errTorn)
		}
	}
	if crc32.Update(crc32.Update(r.seed, crcs, b[:16]), crcs, payload) != le.Uint32(b[16:]) {
		return s, nil, &damageError{Section: r.sum.Sections, Offset: r.offset}
	}
	return s, payload, nil
}

// handleSection gives a section to what it is of. Sections of unknown kinds are passed over.
func (r *reader) handleSection(s section, payload []byte) error {
	if kind, ok := s.chunkKind(); ok {
		if err := r.switchDeployment(s.deployment); err != nil || r.loading == nil {
			return err
		}
		return r.loading.Chunk(kind, payload)
	}
	switch s.kind {
	case kindHead, kindSource, kindDeployment, kindIdentity, kindHolder, kindTarget, kindChange, kindEnd:
	default:
		if s.kind != kindGone || r.parts == nil {
			return nil
		}
	}
	if r.begun && s.kind != kindEnd {
		return errors.New("sources, targets, deployments and holders come before chunks")
	}
	if r.head += int64(len(payload)) + sectionSize; r.how.MaxHead > 0 && r.head > r.how.MaxHead {
		return fmt.Errorf("sources, deployments and holders take more than %d bytes", r.how.MaxHead)
	}
	f, err := decodeFields(payload)
	if err != nil {
		return err
	}
	if r.parts != nil && s.kind != kindHead && s.kind != kindEnd {
		return r.parts.add(s.kind, f)
	}
	switch s.kind {
	case kindHead:
		r.img.HashSeed, err = strconv.ParseUint(tape.Value(f, fieldSeed), 10, 64)
		return err
	case kindSource:
		return r.addSource(f)
	case kindTarget:
		r.passOpened(f, r.how.Target)
		return nil
	case kindChange:
		r.passOpened(f, r.how.Change)
		return nil
	case kindDeployment:
		return r.addDeployment(s.deployment, f)
	case kindIdentity:
		return r.addIdentity(s.deployment, f)
	case kindHolder:
		return r.addHolder(s.deployment, f)
	}
	return r.checkEnd(f)
}

// addSource adds a source to the head. One that was left out, or cannot be opened, keeps its place.
func (r *reader) addSource(f []tape.Field) (err error) {
	var m image.Source
	if open, ok := r.how.Open(f); ok && len(f) > 0 {
		m, err = image.ReadSource(open)
	} else {
		r.sum.LeftOut++
	}
	r.sum.Sources++
	r.img.Sources = append(r.img.Sources, m)
	return err
}

// passOpened opens fields and calls take with them, which may be nil.
func (r *reader) passOpened(f []tape.Field, take func([]tape.Field)) {
	if open, ok := r.how.Open(f); !ok {
		r.sum.LeftOut++
	} else if take != nil {
		take(open)
	}
}

// addDeployment adds deployment n to the head. One that cannot be opened is left out with its chunks.
func (r *reader) addDeployment(n uint32, f []tape.Field) error {
	if int64(n) != int64(r.sum.Deployments) {
		return fmt.Errorf("deployment %d follows %d", n, r.sum.Deployments)
	}
	r.sum.Deployments++
	if f, ok := r.how.Open(f); ok {
		c, err := image.ReadDeployment(f)
		if err != nil {
			return err
		}
		r.deployments[n] = len(r.img.Deployments)
		r.img.Deployments = append(r.img.Deployments, c)
		return nil
	}
	r.sum.LeftOut++
	return nil
}

// addIdentity adds an adapter and salt to a deployment.
func (r *reader) addIdentity(n uint32, f []tape.Field) error {
	f, ok := r.how.Open(f)
	if !ok {
		r.sum.LeftOut++
		return nil
	}
	number, v, err := image.ReadIdentity(f)
	if err != nil {
		return err
	}
	d, err := r.deploymentOf(n, "an identity")
	if d != nil {
		d.Identities[number] = v
	}
	return err
}

// deploymentOf returns the deployment that a section names, nil if it was left out.
func (r *reader) deploymentOf(n uint32, section string) (*image.Deployment, error) {
	if at, ok := r.deployments[n]; ok {
		return &r.img.Deployments[at], nil
	}
	if n < uint32(r.sum.Deployments) {
		return nil, nil
	}
	return nil, fmt.Errorf("%s of deployment %d of %d", section, n, r.sum.Deployments)
}

// addHolder adds a holder to deployment n.
func (r *reader) addHolder(n uint32, f []tape.Field) error {
	h, err := image.ReadHolder(f)
	if err != nil {
		return err
	}
	d, err := r.deploymentOf(n, "a holder")
	if d != nil {
		d.Holders = append(d.Holders, h)
	}
	return err
}

// beginChunks gives the head to the recovery, before the first chunk.
func (r *reader) beginChunks() error {
	if r.begun {
		return nil
	}
	r.begun = true
	if r.how.For != nil {
		r.how.Into = r.how.For(r.img.HashSeed)
	}
	if r.how.Sources != nil {
		r.how.Sources(r.img.Sources)
	}
	return r.how.Into.Image(&r.img)
}

// switchDeployment lets the chunks that follow be those of deployment n.
func (r *reader) switchDeployment(n uint32) error {
	if err := r.beginChunks(); err != nil {
		return err
	}
	if r.loading != nil && r.current == n {
		return nil
	}
	if err := r.finishDeployment(); err != nil {
		return err
	}
	at, known := r.deployments[n]
	switch {
	case r.done[n]:
		return fmt.Errorf("deployment %d comes twice", n)
	case !known && n < uint32(r.sum.Deployments):
		return nil
	case !known:
		return fmt.Errorf("a chunk of deployment %d of %d", n, r.sum.Deployments)
	}
	r.current = n
	var err error
	r.loading, err = r.how.Into.Deployment(&r.img, &r.img.Deployments[at])
	return err
}

// finishDeployment says that no more chunks of the present deployment come, if there is one.
func (r *reader) finishDeployment() error {
	if r.loading == nil {
		return nil
	}
	l := r.loading
	r.loading, r.done[r.current] = nil, true
	return l.Done()
}

// checkEnd compares what was read with the numbers in the end.
func (r *reader) checkEnd(f []tape.Field) error {
	r.ended = true
	for _, n := range []struct {
		name string
		have int
	}{{fieldSections, r.sum.Sections}, {fieldBlocks, r.sum.Blocks}} {
		if v := tape.Value(f, n.name); v != strconv.Itoa(n.have) {
			return fmt.Errorf("it has %d %s, and its end says %s", n.have, n.name, v)
		}
	}
	return nil
}

// Only leaves out the sources that are registered for other deployments.
func Only(d scope.Deployment) func([]image.Source) {
	return func(all []image.Source) {
		for i := range all {
			if all[i].Deployment() != d {
				all[i] = image.Source{}
			}
		}
	}
}
