package index

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/index"
	"example.com/conductor/internal/must"
)

func TestPeerRow(t *testing.T) {
	f := func(r peerRow, ours, others []float64, want string) {
		t.Helper()
		r.what, r.key = "x", "k"
		var a, b []figures
		for _, v := range ours {
			a = append(a, figures{"k": v})
		}
		for _, v := range others {
			b = append(b, figures{"k": v})
		}
		if got := r.formatLine("load", a, b); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(peerRow{unit: perM, ratio: 3}, []float64{9e6, 6e6, 8e6}, []float64{2e6, 3e6, 2e6}, "| load | x | 8 | 2 | 4x | >= 3x, met |  |")
	f(peerRow{unit: perM, ratio: 3}, []float64{5e6}, []float64{2e6}, "| load | x | 5 | 2 | 2.5x | >= 3x, missed |  |")
	f(peerRow{unit: perUs, ratio: 3, less: true}, []float64{500}, []float64{2000}, "| load | x | 0.5 | 2 | 4x | >= 3x, met |  |")
	f(peerRow{unit: perUs, ratio: 3, less: true}, []float64{500}, nil, "| load | x | 0.5 |  |  | >= 3x |  |")
	f(peerRow{unit: 1, limit: 28, less: true}, []float64{29}, nil, "| load | x | 29 |  |  | <= 28, missed |  |")
	f(peerRow{unit: 1, limit: 0.8, note: "7"}, []float64{0.9}, []float64{0.5}, "| load | x | 0.9 | 0.5 | 1.8x | >= 0.8, met | 7 |")
	f(peerRow{unit: 1}, nil, []float64{5}, "| load | x |  |  |  |  |  |")
	f(peerRow{unit: 1, less: true}, []float64{12345.6}, nil, "| load | x | 12346 |  |  |  |  |")
}

func TestEqualAnswers(t *testing.T) {
	file := func(hashes ...uint64) string {
		var b []byte
		for _, h := range hashes {
			b = binary.LittleEndian.AppendUint64(b, h)
		}
		name := filepath.Join(t.TempDir(), "a")
		must.Succeed(t, os.WriteFile(name, b, 0o600))
		return name
	}
	if n, err := equalAnswers(file(1, 2, 3, 4), file(1, 5, 3)); n != 2 || err != nil {
		t.Errorf("%d equal, %v", n, err)
	}
	if _, err := equalAnswers(file(1), "gone"); err == nil {
		t.Error("no error")
	}
}

// The hash of an answer is the one that the rival computes: the vector is the rival's rule
// by hand.
func TestHashOfAnswer(t *testing.T) {
	want := uint64(14695981039346656037)
	for _, v := range []uint64{2, 1<<32 | 9, 7<<32 | 4} {
		want = (want ^ v) * 1099511628211
	}
	if got := hashOf([]index.Prefix{{7, 4}, {1, 9}}); got != want {
		t.Errorf("got %x, want %x", got, want)
	}
}

// Run reports a missing rival at once, and not after minutes of making ops files.
func TestPeersWithoutRival(t *testing.T) {
	p := Peers{Rival: filepath.Join(t.TempDir(), "crtc"), Only: "no load", Rounds: 1}
	if err := p.Run(io.Discard); err == nil || !strings.Contains(err.Error(), "no rival to measure") {
		t.Errorf("error %v", err)
	}
}
