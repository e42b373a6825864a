package tape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const suffix = ".journal"

// segment is a part of a tape: a file, or data.
type segment struct {
	number uint64 // of a file
	size   int64
	data   []byte // of none
}

func segmentName(number uint64) string { return fmt.Sprintf("%08d%s", number, suffix) }

// segmentNumber reads a file's name; files of other names are none of ours.
func segmentNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && segmentName(n) == name
}

// segments lists the segments of a directory, oldest first.
func segments(dir string) ([]segment, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []segment
	for _, f := range files {
		number, ok := segmentNumber(f.Name())
		if !ok || !f.Type().IsRegular() {
			continue
		}
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // a server that records removed it just now
		}
		if err != nil {
			return nil, err
		}
		all = append(all, segment{number: number, size: info.Size()})
	}
	slices.SortFunc(all, func(a, b segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return all, nil
}

// Path returns the file of a segment in a directory.
func Path(dir string, number uint64) string { return filepath.Join(dir, segmentName(number)) }

// Files returns the files of all segments in a directory, oldest first.
func Files(dir string) ([]string, error) {
	all, err := segments(dir)
	paths := make([]string, len(all))
	for i, s := range all {
		paths[i] = Path(dir, s.number)
	}
	return paths, err
}

// removeSegments removes the files of all segments in a directory.
func removeSegments(dir string) error {
	files, err := Files(dir)
	for i := 0; i < len(files) && err == nil; i++ {
		err = os.Remove(files[i])
	}
	return err
}

// Claim makes a directory if it is missing, and locks it for this process until the lock is
// closed. It fails if files could not be made in it. use says what of a server the directory
// is, for the error when another one has it.
func Claim(dir, use string) (lock *os.File, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%q is the %s of another running server", dir, use)
		}
		return nil, fmt.Errorf("cannot lock %q: %w", lock.Name(), err)
	}
	return lock, nil
}

// Segment is a plain segment of one source that grows in memory. It belongs to one goroutine, but
// Bytes that were returned do not change.
type Segment struct {
	frame  frame
	source uint32
	data   []byte
}

// NewSegment begins a segment whose first record is of a number of the epoch, or later. key
// is the printed key of the source, fields are its registration.
func NewSegment(run, number, epoch, from uint64, key string, fields ...Field) *Segment {
	return newSegment(header{run: run, number: number}, nil, 1, registration(key, fields), epoch, from)
}

// registration returns the payload of a Registered record.
func registration(key string, fields []Field) []byte {
	return AppendFields(AppendFields(nil, Field{FieldSource, key}), fields...)
}

// newSegment is NewSegment with the parts of the opening.
func newSegment(h header, settings []Field, source uint32, registration []byte, epoch, from uint64) *Segment {
	s := &Segment{frame: h.frame(nil), source: source, data: h.encode()}
	now := time.Now()
	standing := Record{Kind: Registered, Flags: Standing, Source: source, Time: now, Epoch: epoch, Payload: registration}
	if from > 0 {
		standing.Flags, standing.Seq = Standing|HasSeq, from-1
	}
	told := Record{Kind: Settings, Time: now, Payload: AppendFields(nil, settings...)}
	for _, rec := range [...]Record{told, standing, {Kind: Begin, Time: now, Seq: 1}} {
		s.data = s.frame.appendRecord(s.data, &rec)
	}
	return s
}

// Append adds a record of the source. It copies the payload.
func (s *Segment) Append(rec *Record) {
	rec.Source = s.source
	s.data = s.frame.appendRecord(s.data, rec)
}

// Bytes returns the segment as it is now.
func (s *Segment) Bytes() []byte { return s.data }
