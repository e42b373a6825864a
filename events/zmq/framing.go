package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"example.com/conductor/events/payload"
)

// Framing of ZMTP 3 (rfc.zeromq.org/spec/23): a greeting of 64 bytes, then
// frames of one flag byte, a size of 1 or 8 bytes and a body.
const (
	greetingSize = 64

	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04

	// Publishers send 3 or 4 frames a message. More are tolerated, so that a
	// wrong count is the reader's to judge, but not without end.
	maxFrames = 64
	// Metadata of a handshake is a socket type and an identity of 255 bytes.
	maxCommand = 4 << 10
	// Our messages are short: greeting, READY, one request, PONGs. A peer that
	// does not read it must not hold up the reading goroutine for ever.
	writeTimeout = 5 * time.Second

	// maxRead is the most bytes of one read, and of a block that several messages share.
	maxRead = 64 << 10
	// minRead is the least room for a read. With less the connection takes another block.
	minRead = 512

	// maxSkipped is the most bytes of a message that is read past. More is no batch of an engine, but
	// a stream of bytes gone wrong.
	maxSkipped = 1 << 30
	// keptBeginning is how many bytes of a frame that is too large are kept: enough to tell two
	// batches apart, since their time comes first.
	keptBeginning = 512
)

// framing reads frames from a connection into blocks.
//
//	block  | handed out | from ... to: read | room |
//
// The zmq4 library reads the handshake through it, as a net.Conn. Nothing is allocated for a size
// over the limit: the frame is read past, all but its beginning, or fails the connection.
type framing struct {
	net.Conn // pulse
	limit    uint64
	skips    bool // messages over the limit are read past
	memory   *payload.Memory

	block    *payload.Block
	from, to int
	want     int // size of the next block to take, unless a message is larger

	greeted bool
	passing int // bytes that the library may read
	frames  [][]byte
	ends    []int // of the frames of a message, and their starts

	mu      sync.Mutex
	counted int  // bytes that memory counts; guarded by mu
	closed  bool // guarded by mu
}

func newFraming(c net.Conn, limit int, m *payload.Memory) *framing {
	return &framing{Conn: c, limit: uint64(limit), memory: m, want: payload.MinBlock}
}

// Read reads bytes of the handshake, one frame at most.
func (f *framing) Read(p []byte) (int, error) {
	if f.passing == 0 && !f.greeted {
		f.passing, f.greeted = greetingSize, true
	}
	if f.passing == 0 {
		h, err := f.readHeader(0)
		if err == nil {
			err = h.checkLimits(maxCommand, 0, 0)
		}
		if err != nil {
			return 0, err
		}
		f.passing = h.len + int(h.size)
	}
	if err := f.fillBlock(1); err != nil {
		return 0, err
	}
	n := copy(p[:min(len(p), f.passing)], f.block.Bytes[f.from:f.to])
	f.from += n
	f.passing -= n
	return n, nil
}

func (f *framing) Write(p []byte) (int, error) {
	if err := f.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return f.Conn.Write(p)
}

// readMessage reads the next message. A command is a message of one frame.
func (f *framing) readMessage() (m payload.Message, command bool, err error) {
	f.frames, f.ends = f.frames[:0], f.ends[:0]
	total, at := uint64(0), 0
	most := f.limit
	if f.skips {
		most = max(most, maxSkipped)
	}
	for more := true; more; {
		h, err := f.readHeader(at)
		if err == nil {
			err = h.checkLimits(most, total, len(f.ends)/2)
		}
		if err != nil {
			return m, false, err
		}
		total += h.size
		kept := h.size
		if total > f.limit {
			kept = min(kept, keptBeginning)
			m.Oversize = total
		}
		end := at + h.len + int(kept)
		err = f.fillBlock(end)
		if err == nil && kept < h.size {
			err = f.skipBytes(end, h.size-kept)
		}
		if err != nil {
			return m, false, err
		}
		command = command || h.flags&flagCommand != 0
		more = h.flags&flagMore != 0
		if command && (more || len(f.ends) > 0) {
			return m, false, errors.New("the peer sends a command in parts")
		}
		f.ends = append(f.ends, at+h.len, end)
		at = end
	}
	b := f.block.Bytes[f.from : f.from+at : f.from+at]
	for i := 0; i < len(f.ends); i += 2 {
		f.frames = append(f.frames, b[f.ends[i]:f.ends[i+1]:f.ends[i+1]])
	}
	f.from += at
	f.block.Retain()
	m.Frames, m.Block = f.frames, f.block
	return m, command, nil
}

// skipBytes reads the n bytes that follow an offset behind from, and drops them.
func (f *framing) skipBytes(at int, n uint64) error {
	there := min(n, uint64(f.to-f.from-at))
	b := f.block.Bytes[f.from+at : f.to]
	f.to = f.from + at + copy(b, b[there:])
	for n -= there; n > 0; {
		f.makeRoom(at + maxRead)
		free := f.block.Bytes[f.to:]
		k, err := f.Conn.Read(free[:min(n, uint64(len(free)))])
		if n -= uint64(k); err != nil && n > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// header is the beginning of a frame.
type header struct {
	flags byte
	len   int // bytes of the header
	size  uint64
}

// readHeader reads the header at an offset behind from.
func (f *framing) readHeader(at int) (h header, err error) {
	if err := f.fillBlock(at + 2); err != nil {
		return h, err
	}
	h = header{flags: f.block.Bytes[f.from+at], len: 2, size: uint64(f.block.Bytes[f.from+at+1])}
	if h.flags&flagLong != 0 {
		h.len = 9
		if err := f.fillBlock(at + h.len); err != nil {
			return h, err
		}
		h.size = binary.BigEndian.Uint64(f.block.Bytes[f.from+at+1:])
	}
	return h, nil
}

// checkLimits judges a frame behind others of the same message.
func (h header) checkLimits(limit, bytes uint64, frames int) error {
	switch {
	case h.flags&flagCommand != 0 && h.size > maxCommand:
		return fmt.Errorf("the peer announces a command of %d bytes, limit is %d", h.size, maxCommand)
	case h.size > limit || bytes+h.size > limit:
		return fmt.Errorf("the peer announces a frame of %d bytes after %d of the same message, limit is %d", h.size, bytes, limit)
	case frames == maxFrames:
		return fmt.Errorf("the peer sends a message of more than %d frames", maxFrames)
	}
	return nil
}

// fillBlock reads until n bytes behind from are there.
func (f *framing) fillBlock(n int) error {
	for f.to-f.from < n {
		f.makeRoom(n)
		free := f.block.Bytes[f.to:]
		k, err := f.Conn.Read(free)
		f.to += k
		switch {
		case k == 0 && err == nil: // silence
			f.want = payload.MinBlock
		case k == len(free) && k >= f.want/2:
			f.want = min(2*f.want, maxRead)
		}
		if err != nil && f.to-f.from < n {
			if err == io.EOF && f.to > f.from {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// makeRoom makes room in the block for n bytes behind from, and for reading.
func (f *framing) makeRoom(n int) {
	if b := f.block; b != nil {
		empty := f.from == f.to
		if empty && b.HasOneReference() {
			f.from, f.to = 0, 0
		}
		large := f.to == 0 && len(b.Bytes) > 2*max(n, f.want)
		if f.from+n <= len(b.Bytes) && !large && (!empty || len(b.Bytes)-f.to >= minRead) {
			return
		}
	}
	next := payload.TakeBlock(max(n, f.want))
	if f.block != nil {
		f.to = copy(next.Bytes, f.block.Bytes[f.from:f.to])
		f.from = 0
		f.block.Release()
		clear(f.frames[:cap(f.frames)]) // of the last message, which the caller has done with
	}
	f.block = next
	f.countBlock(len(next.Bytes))
}

// countBlock notes the size of the block.
func (f *framing) countBlock(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		bytes = 0
	}
	f.memory.CountRead(bytes - f.counted)
	f.counted = bytes
}

// Close closes the connection. The garbage collector takes the block.
func (f *framing) Close() error {
	f.mu.Lock()
	f.memory.CountRead(-f.counted)
	f.counted, f.closed = 0, true
	f.mu.Unlock()
	return f.Conn.Close()
}
