package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// deadlines is a writer that notes until when each write may take.
type deadlines struct {
	http.ResponseWriter
	at     time.Time
	writes []time.Duration // from when the bubble began
	begun  time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.at = at
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	d.writes = append(d.writes, d.at.Sub(d.begun))
	return len(b), nil
}

// TestPacesAreTheEarlierOnes writes with deadlines of the handler's own, as dumps do.
func TestPacesAreTheEarlierOnes(t *testing.T) {
	const patience = 2 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		d := &deadlines{ResponseWriter: httptest.NewRecorder(), begun: begun}
		paced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			w.Write(nil)
			c.SetWriteDeadline(begun.Add(30 * time.Second))
			w.Write(make([]byte, pieceSize+1))
			c.SetWriteDeadline(begun.Add(time.Hour))
			w.Write(nil)
			time.Sleep(time.Second)
			c.SetWriteDeadline(time.Time{})
			if got := d.at.Sub(begun); got != time.Second+patience {
				t.Errorf("without one of its own the end of an answer has until %v", got)
			}
		}), patience).ServeHTTP(d, httptest.NewRequest("GET", "/", nil))
		want := []time.Duration{patience, 30 * time.Second, 30 * time.Second, patience}
		for i := range max(len(want), len(d.writes)) {
			if i >= len(want) || i >= len(d.writes) || want[i] != d.writes[i] {
				t.Fatalf("writes may take until %v, want %v", d.writes, want)
			}
		}
		paced(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(begun); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("a writer without deadlines: %v", err)
			}
		}), patience).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	})
}
