package tape

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"example.com/conductor/keyfile"
)

// maxRead bounds the bytes that are taken into memory of a file that is named like a
// segment. A segment is three quarters of a tape at most, and usually 64 MiB.
const maxRead = 4 << 30

// Reader reads segments from their oldest record on. Of a directory it holds one segment
// in memory.
type Reader struct {
	dir    string // "" if the segments are in memory
	key    *keyfile.Key
	files  []segment // not read yet
	total  int64
	read   int64    // bytes of segments done with
	scan   *Scanner // nil: no segment is open
	damage Damage
}

// Open returns a Reader of the segments that the directory holds now. It fails if there is no
// segment. key opens sealed segments; plain ones are read with and without it.
func Open(dir string, key *keyfile.Key) (*Reader, error) {
	files, err := segments(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the journal: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%q holds no journal: no file is named like %s", dir, segmentName(1))
	}
	r := &Reader{dir: dir, key: key, files: files}
	for _, f := range files {
		r.total += f.size
	}
	return r, nil
}

// Scan returns a Reader of plain segments in memory, oldest first. Records alias them.
func Scan(segments ...[]byte) *Reader { return scanWith(nil, segments...) }

// scanWith returns a Reader of segments in memory.
func scanWith(key *keyfile.Key, segments ...[]byte) *Reader {
	r := &Reader{key: key}
	for _, data := range segments {
		r.files = append(r.files, segment{size: int64(len(data)), data: data})
		r.total += int64(len(data))
	}
	return r
}

// Next reads the next record into rec. Damage is skipped and counted; io.EOF is
// the end. The payload stays valid.
func (r *Reader) Next(rec *Record) error {
	for {
		if r.scan != nil && r.scan.Next(rec) {
			return nil
		}
		r.closeSegment()
		if len(r.files) == 0 {
			return io.EOF
		}
		f := r.files[0]
		r.files = r.files[1:]
		if err := r.loadSegment(f); err != nil {
			return err
		}
	}
}

// loadSegment reads a segment. One that the recording server has removed meanwhile is
// no error.
func (r *Reader) loadSegment(f segment) error {
	name, data := "segment in memory", f.data
	if r.dir != "" {
		if name = Path(r.dir, f.number); f.size > maxRead {
			r.damage.Foreign++
			return nil
		}
		var err error
		// #nosec G703 -- the names are those of the directory that the operator gives
		if data, err = os.ReadFile(name); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read the journal: %w", err)
		}
	}
	scan, err := NewScanner(data, r.key)
	if v := new(versionError); errors.As(err, &v) {
		return fmt.Errorf("%q is of %w", name, err)
	}
	if err == errSealed {
		return fmt.Errorf("%q is %w", name, err)
	}
	if err != nil || r.dir != "" && scan.head.number != f.number {
		r.damage.Foreign++
		r.damage.Bytes += int64(len(data))
		return nil
	}
	r.scan = scan
	return nil
}

// closeSegment ends the segment in memory.
func (r *Reader) closeSegment() {
	if r.scan == nil {
		return
	}
	r.damage = r.Damage()
	r.read += int64(len(r.scan.data))
	r.scan = nil
}

// Damage is what was skipped so far.
func (r *Reader) Damage() Damage {
	d := r.damage
	if r.scan != nil {
		d.Torn += r.scan.damage.Torn
		d.Skipped += r.scan.damage.Skipped
		d.Bytes += r.scan.damage.Bytes
		d.Unopened += r.scan.damage.Unopened
	}
	return d
}

// Progress returns how many bytes of how many were read.
func (r *Reader) Progress() (read, total int64) {
	if r.scan == nil {
		return r.read, r.total
	}
	return r.read + int64(r.scan.off), r.total
}
