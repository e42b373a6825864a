package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/history"
	"example.com/conductor/history/peer"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// TestTakeoverFromStore brings single deployments to a replica that runs, without a peer alive.
func TestTakeoverFromStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", nil)
	a.hold("m", 1000)
	a.hold("n", 10)
	a.now()
	b := newMember(t, server, "b", nil)
	b.hold("own", 7)
	take := &history.Takeover{Loader: b.loader(true)}
	bring := func(ctx context.Context, of string, from ...string) (int, string, error) {
		return take.BringDeployment(ctx, model(of), peer.Replicas{Client: peer.PlainClient(), URLs: from}, b.Keeper)
	}
	f := func(of string, from []string, blocks int, origin, mistake string) {
		t.Helper()
		n, got, err := bring(t.Context(), of, from...)
		if n != blocks || got != origin || (err == nil) != (mistake == "") || err != nil && !strings.Contains(err.Error(), mistake) {
			t.Errorf("%s: %d blocks, %q, %v", of, n, got, err)
		}
	}
	dead := "http://127.0.0.1:1"
	own := "engine of own 14 41 peer\n"
	f("none", nil, 0, "", "")
	f("none", []string{dead}, 0, "", "connection refused")
	b.expect("nothing", own)
	f("m", []string{dead}, 1000, ingest.FromShelf, "")
	b.expect("one deployment", "engine of m 1000 41 shelf\n"+own)
	f("m", nil, 1000, ingest.FromShelf, "") // again, the old ones go
	b.expect("again", "engine of m 1000 41 shelf\n"+own)
	must.Succeed(t, a.store().Client().Del(t.Context(), a.chunkKey(keyName(model("n")), manifestOf(list(t, a), model("n")).ID, 0)).Err())
	f("n", nil, 0, "", "a chunk is gone")
	b.expect("a snapshot that is not whole", "engine of m 1000 41 shelf\n"+own)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // a replica that does not answer
	must.Succeed(t, err)
	defer silent.Close()
	waiting, give := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := bring(waiting, "n", "http://"+silent.Addr().String())
		ended <- err
	}()
	c, err := silent.Accept()
	must.Succeed(t, err)
	defer c.Close()
	impatient, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := bring(impatient, "n"); !errors.Is(err, context.Canceled) { // the other one is at it
		t.Error(err)
	}
	next := make(chan error)
	go func() {
		_, _, err := bring(t.Context(), "n")
		next <- err
	}()
	give()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must.Succeed(t, <-next)
	server.Kill()
	b.cfg.Group.Beat(t.Context())
	f("n", nil, 0, "", "the store is not there")
	if st := b.Status(); b.now().Written != st.Written || len(st.Failed) != 0 {
		t.Errorf("without the store: %+v", b.Status())
	}
	server.Run()
	b.cfg.Group.Beat(t.Context())
	if st := b.now(); st.Written != 1 { // it writes deployments of registered sources alone
		t.Errorf("%+v", st)
	}
	restored(t, server, nil).expect("an emptied store", "engine of own 7 41 shelf\n")
}
