package zmq

import (
	"context"
	"fmt"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/events/payload"
)

// maxParts is how many frames a snapshot may have. A recorder of 1 M blocks needs 12,000 where
// each event has one block.
const maxParts = 1 << 16

// sizeError says that a reply is larger than it may be.
type sizeError struct{ limit uint64 }

func (e sizeError) Error() string {
	return fmt.Sprintf("the reply is too large: limits are %d bytes and %d frames", e.limit, maxParts)
}

// TooLarge tells a caller that a larger limit may help.
func (e sizeError) TooLarge() bool { return true }

// Snapshot asks the snapshot service of a publisher for its whole state. The request is the
// empty delimiter that a ROUTER expects from a REQ, then the word. The reply is one message,
// which may be larger than Transport.MaxMessage: its frames are read one at a time, each into
// memory of its own, so that the peer decides no allocation beyond limit.
func (t Transport) Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error) {
	t.MaxMessage = limit
	c, err := t.openConnection(ctx, endpoint, zmq4.Dealer, zmq4.NewMsgFrom([]byte{}, []byte("snapshot")))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	frames, err := c.(*conn).readParts(progress)
	if err != nil {
		for _, f := range frames {
			f.Block.Release()
		}
		return nil, fmt.Errorf("cannot read a snapshot from %q: %w", endpoint, err)
	}
	return frames, nil
}

// Snapshot is Transport.Snapshot. The service is dialed, also where the publisher connects to us.
func (s *Source) Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error) {
	return s.transport.Snapshot(ctx, endpoint, limit, progress)
}

// readParts returns the frames of the next message, each as a message of its own.
func (c *conn) readParts(progress func()) (all []payload.Message, err error) {
	bytes := uint64(0)
	for {
		m, h, err := c.framing.readPart(bytes, len(all))
		if err != nil {
			return all, err
		}
		if h.flags&flagCommand != 0 {
			err = c.obeyCommand(m.Frames[0])
			m.Block.Release()
			if err == nil && len(all) > 0 {
				err = errMalformed
			}
			if err != nil {
				return all, err
			}
			continue
		}
		all, bytes = append(all, m), bytes+h.size
		if h.flags&flagMore == 0 {
			return all, nil
		}
		progress()
	}
}

// readPart reads one frame behind others of the same message.
func (f *framing) readPart(bytes uint64, parts int) (m payload.Message, h header, err error) {
	if h, err = f.readHeader(0); err != nil {
		return m, h, err
	}
	switch command := h.flags&flagCommand != 0; {
	case command && h.size > maxCommand:
		return m, h, errMalformed
	case !command && (bytes+h.size > f.limit || h.size > f.limit || parts == maxParts):
		return m, h, sizeError{f.limit}
	}
	at := h.len + int(h.size)
	if err := f.fillBlock(at); err != nil {
		return m, h, err
	}
	body := f.block.Bytes[f.from+h.len : f.from+at : f.from+at]
	f.from += at
	f.block.Retain()
	return payload.Message{Frames: [][]byte{body}, Block: f.block}, h, nil
}
