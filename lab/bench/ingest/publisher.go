package ingest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/lab/harness"
)

// publisher is the other process: one PUB socket per source. It speaks ZMTP itself, so that
// it takes less of the machine than the Conductor that follows it.
type publisher struct {
	load    Load
	applied []atomic.Uint64 // batches the consumer has applied, by source
	window  int             // batches of a source that may be under way
}

// RunPublisher runs the publishing process: it prints the ports of its sources, obeys
// the orders on in, and ends with it.
//
//	out   port port ...                 one line
//	in    rate of all sources, batches/s; 0 is as fast as the consumer applies
//	in    then, for ever: batches applied, by source, each 8 bytes
func RunPublisher(l Load, in io.Reader, out io.Writer) error {
	p := &publisher{load: l, window: Window, applied: make([]atomic.Uint64, l.Sources)}
	listeners := make([]net.Listener, l.Sources)
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		fmt.Fprintf(out, "%d ", listeners[i].Addr().(*net.TCPAddr).Port)
	}
	fmt.Fprintln(out)

	r := bufio.NewReader(in)
	var perSecond float64
	if _, err := fmt.Fscanln(r, &perSecond); err != nil {
		return fmt.Errorf("cannot read the rate: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	for i, ln := range listeners {
		senders.Go(func() {
			defer ln.Close()
			p.servePeer(ctx, i, ln, perSecond/float64(l.Sources)) // until either side ends
		})
	}
	acks := make([]byte, 8*l.Sources)
	for {
		if _, err := io.ReadFull(r, acks); err != nil {
			cancel()
			for _, ln := range listeners {
				ln.Close()
			}
			senders.Wait()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for i := range p.applied {
			p.applied[i].Store(binary.LittleEndian.Uint64(acks[8*i:]))
		}
	}
}

// servePeer sends batches to the one subscriber of a source.
func (p *publisher) servePeer(ctx context.Context, source int, ln net.Listener, perSecond float64) error {
	c, err := ln.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := greetSubscriber(c); err != nil {
		return err
	}
	go io.Copy(io.Discard, c) // heartbeats
	s := NewStamper(p.load, source)
	w := bufio.NewWriterSize(c, 256<<10)
	// Sources that began together do not go on in step.
	due := time.Now().Add(time.Duration(float64(source) / float64(p.load.Sources) / max(perSecond, 1) * float64(time.Second)))
	for seq := uint64(0); ; seq++ {
		switch {
		case perSecond > 0:
			if err := w.Flush(); err != nil {
				return err
			}
			if !harness.Wait(ctx, time.Until(due)) {
				return nil
			}
			due = due.Add(time.Duration(float64(time.Second) / perSecond))
		case seq-p.applied[source].Load() >= uint64(p.window):
			if err := w.Flush(); err != nil {
				return err
			}
			for seq-p.applied[source].Load() >= uint64(p.window) {
				if !harness.Wait(ctx, 200*time.Microsecond) {
					return nil
				}
			}
		}
		if _, err := w.Write(s.stampedMessage(seq)); err != nil {
			return err
		}
	}
}

// greetSubscriber speaks a PUB's side of ZMTP 3.0: greeting, READY, and the subscription.
func greetSubscriber(c net.Conn) error {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte{4, 25}, "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	if _, err := c.Write(append(greeting, ready...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 64)); err != nil {
		return err
	}
	for range 2 { // READY, then a message that subscribes
		var head [2]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, head[1])); err != nil {
			return err
		}
	}
	return nil
}
