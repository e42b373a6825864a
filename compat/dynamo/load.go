package dynamo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history/peer"
)

// Reasons of parts of a dump that are left out.
const (
	skipBad    = "bad_event"             // cannot be read
	skipOther  = "unsupported_residency" // not about blocks of a worker
	skipError  = "error_slot"            // a partition the peer could not dump
	skipNoSize = "no_block_size"         // a partition in the oldest form without a registration
)

// Dumps returns the format of GET /dump, by which a replica recovers from a peer.
func Dumps(log zerolog.Logger) peer.Format {
	return peer.Format{
		Path: "/dump", Accept: ndjson + ", application/json;q=0.5", Reasons: []string{skipBad, skipOther, skipError, skipNoSize},
		Read: func(body io.Reader, contentType string, into *ingest.Recovery, skip func(string)) error {
			l := &loader{log: log, in: into, skip: skip, longest: longestValue}
			if strings.HasPrefix(contentType, ndjson) {
				return l.lines(body)
			}
			return l.object(body)
		},
	}
}

// loader applies one dump.
type loader struct {
	log     zerolog.Logger
	in      *ingest.Recovery
	skip    func(reason string) // counts an event that is left out
	blocks  dumpBlocks
	longest int64 // bytes of a value of an object
}

// dumpSlot has the members of a slot, or of a line, next to its events.
type dumpSlot struct {
	key       string
	blockSize int
	model     string
	group     *string
}

// dumpLine is a line of NDJSON.
type dumpLine struct {
	Key       string          `json:"key"`
	BlockSize int             `json:"block_size"`
	Model     string          `json:"model_name"`
	Group     *string         `json:"routing_group"`
	Event     json.RawMessage `json:"event"`
	Error     json.RawMessage `json:"error"`
}

const (
	// longestLine bounds a line: some hundred thousand blocks.
	longestLine = 64 << 20
	// longestValue bounds a value of an object: a partition's events may be one.
	longestValue = 256 << 20
)

// lines reads a dump with one event a line. A line that cannot be read costs itself.
func (l *loader) lines(r io.Reader) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), longestLine)
	for s.Scan() {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		if err := l.cutting(s.Bytes(), l.line); err != nil {
			return err
		}
	}
	return s.Err()
}

// cutting calls f with a document without its list of blocks, and those, or with the
// whole document where the list is not to be had so.
func (l *loader) cutting(raw []byte, f func([]byte, *dumpBlocks) error) error {
	if short := l.blocks.cut(raw); short != nil {
		if err := f(short, &l.blocks); !errors.Is(err, errElsewhere) {
			return err
		}
	}
	return f(raw, nil)
}

// line reads one line. blocks are those that were cut out of it, if any.
func (l *loader) line(raw []byte, blocks *dumpBlocks) error {
	var line dumpLine
	if err := json.Unmarshal(raw, &line); err != nil {
		l.skip(skipBad)
		return nil
	}
	at := dumpSlot{key: line.Key, blockSize: line.BlockSize, model: line.Model, group: line.Group}
	switch {
	case line.Event != nil:
		return l.apply(&at, line.Event, blocks)
	case line.Error != nil:
		l.skip(skipError)
	default:
		l.skip(skipBad)
	}
	return nil
}

// object reads a dump that is one object: slots with their events, the bare lists of
// events of old, and slots with an error.
func (l *loader) object(r io.Reader) error {
	values := &boundedValues{from: r, longest: l.longest}
	d := json.NewDecoder(values)
	values.d = d
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := nextKey(d)
		if err != nil {
			return err
		}
		if err := l.slot(d, &dumpSlot{key: key}); err != nil {
			return err
		}
	}
	return expect(d, '}')
}

// boundedValues are the bytes of a dump. A decoder keeps a value until its end: one that does not
// end soon ends the dump.
type boundedValues struct {
	from    io.Reader
	d       *json.Decoder
	read    int64
	longest int64
}

// Read implements io.Reader.
func (b *boundedValues) Read(p []byte) (n int, err error) {
	if kept := b.read - b.d.InputOffset(); kept > b.longest {
		return 0, fmt.Errorf("the dump has a value of more than %d bytes", b.longest)
	}
	n, err = b.from.Read(p)
	b.read += int64(n)
	return n, err
}

// slot reads the value of one key.
func (l *loader) slot(d *json.Decoder, at *dumpSlot) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return err
	case t == json.Delim('['):
		return l.events(d, at)
	case t != json.Delim('{'):
		l.skip(skipBad)
		return nil
	}
	var early []json.RawMessage // events that came before the block size
	for d.More() {
		name, err := nextKey(d)
		if err != nil {
			return err
		}
		var whole json.RawMessage
		if name == "events" && at.blockSize > 0 {
			if err := l.list(d, at); err != nil {
				return err
			}
			continue
		}
		if err := d.Decode(&whole); err != nil {
			return err
		}
		switch name {
		case "block_size":
			err = json.Unmarshal(whole, &at.blockSize)
		case "model_name":
			err = json.Unmarshal(whole, &at.model)
		case "routing_group":
			err = json.Unmarshal(whole, &at.group)
		case "events":
			err = json.Unmarshal(whole, &early)
		case "error":
			l.skip(skipError)
		}
		if err != nil {
			var kind *json.UnmarshalTypeError
			if !errors.As(err, &kind) {
				return err
			}
			l.skip(skipBad)
		}
	}
	for _, raw := range early {
		if err := l.event(at, raw); err != nil {
			return err
		}
	}
	return expect(d, '}')
}

// events reads the rest of a list of events.
func (l *loader) events(d *json.Decoder, at *dumpSlot) error {
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := l.event(at, raw); err != nil {
			return err
		}
	}
	return expect(d, ']')
}

// list reads what should be a list of events.
func (l *loader) list(d *json.Decoder, at *dumpSlot) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return err
	case t == json.Delim('['):
		return l.events(d, at)
	case t == nil:
		return nil
	}
	l.skip(skipBad)
	if t == json.Delim('{') {
		return rest(d)
	}
	return nil
}

// rest reads over the rest of an object.
func rest(d *json.Decoder) error {
	for d.More() {
		if _, err := nextKey(d); err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return expect(d, '}')
}

// event reads one event.
func (l *loader) event(at *dumpSlot, raw []byte) error {
	return l.cutting(raw, func(raw []byte, blocks *dumpBlocks) error { return l.apply(at, raw, blocks) })
}

// apply applies one event, whose blocks were cut out unless blocks is nil. One that
// cannot be read costs itself.
func (l *loader) apply(at *dumpSlot, raw []byte, blocks *dumpBlocks) error {
	where, why := l.where(at)
	if why != "" {
		l.skip(why)
		return nil
	}
	var e routerEvent
	if err := json.Unmarshal(raw, &e); err != nil {
		l.skip(skipBad)
		return nil
	}
	st, err := e.restorable(where, blocks)
	switch {
	case errors.Is(err, errElsewhere):
		return err
	case errors.Is(err, errOther):
		l.skip(skipOther)
		return nil
	case err != nil:
		l.log.Debug().Err(err).Str("key", at.key).Msg("an event of a dump is left out")
		l.skip(skipBad)
		return nil
	}
	return l.in.Stored(st)
}

// where says which partition and size a slot is about, or why that is not known.
func (l *loader) where(at *dumpSlot) (slot, string) {
	p := scope.Shard{Model: at.model}
	if at.group != nil {
		p.Tenant = *at.group
	}
	if at.model == "" {
		p = l.split(at.key)
	}
	if p.Tenant == "" {
		p.Tenant = scope.DefaultTenant
	}
	size := at.blockSize
	if size == 0 {
		if sizes := l.in.BlockSizes(p); len(sizes) == 1 {
			size = sizes[0]
		}
	}
	switch {
	case p.Model == "":
		return slot{}, skipBad
	case size < 0 || size > math.MaxUint32:
		return slot{}, skipBad
	case size == 0:
		return slot{}, skipNoSize
	}
	return slot{p, size}, ""
}

// split reads a key "model:group". Both may contain colons: a split that is
// registered here counts, else the last one, because models have colons more often.
func (l *loader) split(key string) scope.Shard {
	for i := range key {
		if key[i] == ':' {
			p := scope.Shard{Model: key[:i], Tenant: key[i+1:]}
			if len(l.in.BlockSizes(p)) > 0 {
				return p
			}
		}
	}
	i := strings.LastIndexByte(key, ':')
	if i < 0 {
		return scope.Shard{Model: key}
	}
	return scope.Shard{Model: key[:i], Tenant: key[i+1:]}
}

// expect reads one delimiter.
func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if t != want {
		return fmt.Errorf("the dump has %v where %v is expected", t, want)
	}
	return nil
}

// nextKey reads the key of a member.
func nextKey(d *json.Decoder) (string, error) {
	t, err := d.Token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("the dump has %v where a key is expected", t)
	}
	return s, nil
}
