package index

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// An ops file gives back the operations, whatever they are made of.
func TestOpsFileRoundTrip(t *testing.T) {
	f := func(change func(*Config)) {
		t.Helper()
		c := small()
		change(&c)
		name := filepath.Join(t.TempDir(), "load.ops")
		must.Succeed(t, ExportOps(c, name))
		_, want, _ := streamOf(t, c)
		file := c
		file.Case, file.Repeat, file.EventBlock = "", 0, 0
		file.Synthetic, file.SMG, file.Ops = 0, "", name
		_, got, _ := streamOf(t, file)
		if got.print() != want.print() || got.counted != want.counted {
			t.Errorf("%+v: the operations differ", c)
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Tiers, c.HashOnly, c.Pools, c.HashSeeds, c.Repeat = 3, true, 4, 2, 20 })
	f(func(c *Config) { c.Case = "zip1" })
	f(func(c *Config) { c.Synthetic, c.Churn = 2000, 500 })
	f(func(c *Config) { c.SMG = "pinned" })
}

// Readers of the format rely on each position.
func TestOpsFileLayout(t *testing.T) {
	s := &Stream{
		owners: 2, tiers: 2, counted: true, load: 1, seq: []uint64{1, 2}, local: []uint64{3, 4}, gone: []uint64{2},
		ops: []op{
			{kind: store, hasParent: true, owner: 1, family: 5, to: 2, parent: 9},
			{kind: remove, bare: true, to: 1}, {kind: query, class: gate, from: 1, to: 2},
		},
	}
	name := filepath.Join(t.TempDir(), "x.ops")
	write := func() []byte {
		t.Helper()
		var b bytes.Buffer
		must.Succeed(t, s.writeOps(&b))
		return b.Bytes()
	}
	u32 := func(v ...byte) (out []byte) {
		for _, v := range v {
			out = append(out, v, 0, 0, 0)
		}
		return out
	}
	u64 := func(v ...byte) (out []byte) {
		for _, v := range v {
			out = append(out, v, 0, 0, 0, 0, 0, 0, 0)
		}
		return out
	}
	want := bytes.Join([][]byte{
		[]byte("H2HOPS01"), u32(2, 3), u64(2, 1, 2, 2),
		u32(1, 1, 1, 0, 2, 5), u64(9),
		u32(2, 0, 0, 0, 1), {0, 1, 0, 0}, u64(0),
		u32(0, 0, 0, 1, 2), {0, 0, byte(gate), 0}, u64(0),
		u64(1, 2), u64(3, 4), u64(2), u32(2, 1, 1),
	}, nil)
	got := write()
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}

	// Files that are cut or damaged are errors.
	f := func(want string, damage func(b []byte) []byte) {
		t.Helper()
		must.Succeed(t, os.WriteFile(name, damage(bytes.Clone(got)), 0o600))
		if _, err := openOps(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f("not an ops file", func(b []byte) []byte { return b[:20] })
	f("not an ops file", func(b []byte) []byte { b[0]++; return b })
	f("too few", func(b []byte) []byte { return b[:len(b)-20] })
	f("too few", func(b []byte) []byte { b[22] = 1; return b })
	f("operation 0 is damaged", func(b []byte) []byte { b[headSize] = 3; return b })
	f("operation 0 is damaged", func(b []byte) []byte { b[headSize+8] = 2; return b })
	f("operation 0 is damaged", func(b []byte) []byte { b[headSize+16] = 3; return b })
	f("operation 1 is damaged", func(b []byte) []byte { b[headSize+recordSize+16] = 2; return b })
	f("operation 2 is damaged", func(b []byte) []byte { b[headSize+2*recordSize+22] = 99; return b })
	f("no operations", func(b []byte) []byte { copy(b[12:], u32(0)); return b })
	f("tiers", func(b []byte) []byte { b[len(b)-12] = 3; return b })
}
