package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSilentOnlyWhereQueriesTell: an engine is silent only if queries show that it should have announced something.
func TestSilentOnlyWhereQueriesTell(t *testing.T) {
	const ranks = 12
	serve := func(b *bench, minutes, publishing int) { // a new prompt every second, computed by the first few ranks in turn
		for i := range minutes * 60 {
			path := fmt.Sprintf("p%d", b.objects)
			b.objects++
			b.run("query path=" + path)
			if publishing > 0 {
				b.run(fmt.Sprintf("store e%d path=%s", i%publishing, path))
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
	}
	silent := func(b *bench) int { return strings.Count(b.findings(), " silent: ") }
	cases := []struct {
		name                        string
		publishing, minutes, silent int
	}{
		{"few ranks are used", 2, 8, 0},
		{"one of many hangs", ranks - 1, 12, 1},
		{"one of many is idle for a while", ranks - 1, 2, 0},
		{"none publishes", 0, 8, ranks},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				for i := range ranks {
					b.run(fmt.Sprintf("register e%d", i))
					b.run(fmt.Sprintf("store e%d path=first%d", i, i))
				}
				time.Sleep(6 * time.Minute)
				if n := silent(b); n != 0 {
					t.Errorf("%d are silent, and nobody has asked", n)
				}
				serve(b, c.minutes, c.publishing)
				if n := silent(b); n != c.silent {
					t.Errorf("%d are silent, want %d:\n%s", n, c.silent, b.findings())
				}
			})
		})
	}
}

// TestSilentByQueriesThatTell: queries about one instance, or of those whose other engine has computed all, tell nothing of an
// engine.
func TestSilentByQueriesThatTell(t *testing.T) {
	f := func(name string, query func(b *bench, i int)) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.run("register A")
				b.run("register B")
				b.run("store A path=a/b")
				b.run("store B path=x")
				for i := range 600 {
					query(b, i)
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if found := b.finding("silent"); found != "" {
					t.Error(found)
				}
			})
		})
	}
	f("one instance after the other", func(b *bench, i int) {
		b.run("query path=a/b instance=A")
		b.run("query path=a/b instance=B")
	})
	f("a standby", func(b *bench, i int) {
		b.run(fmt.Sprintf("query path=n%d", i))
		b.run(fmt.Sprintf("store A path=n%d", i))
	})
}
