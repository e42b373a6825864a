package zmq

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestPulseOfPausedReader reads after an hour without a read. The peer answered
// heartbeats before, and its silence counts from the next read on.
func TestPulseOfPausedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		p := &pulse{Conn: ours, interval: 10 * time.Second, on: true, answered: true}
		next := make(chan byte)
		go func() {
			for b := range next {
				theirs.Write([]byte{b})
			}
		}()
		pings := 0
		go func() {
			for buf := make([]byte, 64); ; pings++ {
				if _, err := theirs.Read(buf); err != nil {
					return
				}
			}
		}()
		read := func(want byte) {
			t.Helper()
			var buf [1]byte
			n, err := 0, error(nil)
			for n == 0 && err == nil { // once for each silent interval
				n, err = p.Read(buf[:])
			}
			if n != 1 || err != nil || buf[0] != want {
				t.Fatalf("read %d bytes, %q: %v", n, buf, err)
			}
		}
		next <- 'a'
		read('a')
		time.Sleep(time.Hour)
		go func() {
			time.Sleep(25 * time.Second)
			next <- 'b'
		}()
		read('b')
		synctest.Wait()
		if pings != 2 {
			t.Errorf("%d heartbeats in 25 s of silence, want 2", pings)
		}
		close(next)
		var buf [1]byte
		for range missedBeats {
			if _, err := p.Read(buf[:]); err != nil {
				t.Errorf("the peer is given up early: %v", err)
			}
		}
		if _, err := p.Read(buf[:]); err == nil {
			t.Error("a peer is kept that answers no heartbeat any more")
		}
	})
}
