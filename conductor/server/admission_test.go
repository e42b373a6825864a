package server

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/bounds"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// TestAdmissionBound holds that at most the bound is inside, and that every query that
// waits long enough enters.
func TestAdmissionBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, queries = 3, 50
		a := NewAdmission(most, time.Minute)
		var mu sync.Mutex
		inside, peak := 0, 0
		var wg sync.WaitGroup
		for range queries {
			wg.Go(func() {
				if err := a.Enter(t.Context(), bounds.Flow{}); err != nil {
					t.Error(err)
					return
				}
				defer a.Leave(bounds.Flow{})
				mu.Lock()
				inside++
				peak = max(peak, inside)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
			})
		}
		synctest.Wait()
		if st := a.Stats(); st != (AdmissionStats{Inside: most, Waiting: queries - most}) {
			t.Errorf("while they work: %+v", st)
		}
		wg.Wait()
		if peak != most {
			t.Errorf("%d at once, %d may be", peak, most)
		}
		if st := a.Stats(); st != (AdmissionStats{}) {
			t.Errorf("in the end: %+v", st)
		}
	})
}

// TestAdmissionOrder holds that queries enter in order of arrival, without the one whose
// client went away.
func TestAdmissionOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(1, time.Minute)
		must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
		gone, leave := context.WithCancel(t.Context())
		var served []int
		for i := range 6 {
			ctx := t.Context()
			if i == 2 {
				ctx = gone
			}
			go func() {
				err := a.Enter(ctx, bounds.Flow{})
				if i == 2 {
					if !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
						t.Errorf("who went away: %v", err)
					}
					return
				}
				if err != nil {
					t.Errorf("%d: %v", i, err)
				}
				served = append(served, i) // one slot: no lock needed
				a.Leave(bounds.Flow{})
			}()
			synctest.Wait() // it waits before the next one comes
		}
		leave()
		synctest.Wait()
		if st := a.Stats(); st != (AdmissionStats{Inside: 1, Waiting: 5}) {
			t.Errorf("after one went away: %+v", st)
		}
		a.Leave(bounds.Flow{})
		synctest.Wait()
		if want := []int{0, 1, 3, 4, 5}; !slices.Equal(served, want) {
			t.Errorf("served %v, want %v", served, want)
		}
		if st := a.Stats(); st != (AdmissionStats{}) {
			t.Errorf("in the end: %+v", st)
		}
	})
}

// TestAdmissionRefuses holds how long a query waits, and that its turn in the queue
// goes with it.
func TestAdmissionRefuses(t *testing.T) {
	f := func(wait time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			a := NewAdmission(1, wait)
			must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
			start := time.Now()
			err := a.Enter(t.Context(), bounds.Flow{})
			if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "1 are let in") {
				t.Errorf("error %v", err)
			}
			if waited := time.Since(start); waited != wait {
				t.Errorf("waited for %s, want %s", waited, wait)
			}
			if st := a.Stats(); st != (AdmissionStats{Inside: 1, Refused: 1}) {
				t.Errorf("%+v", st)
			}
			a.Leave(bounds.Flow{})
			if err := a.Enter(t.Context(), bounds.Flow{}); err != nil {
				t.Errorf("a slot is free: %v", err)
			}
		})
	}
	f(100 * time.Millisecond)
	f(0)
}

// TestAdmissionRaces lets queries give up while others leave. Every slot is free in the
// end.
func TestAdmissionRaces(t *testing.T) {
	a := NewAdmission(2, time.Microsecond)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 0 {
					go cancel()
				}
				if err := a.Enter(ctx, bounds.Flow{}); err == nil {
					a.Leave(bounds.Flow{})
				} else if !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if st := a.Stats(); st.Inside != 0 || st.Waiting != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

// TestAdmissionDo holds that a query gives its slot back if its work fails or panics, and
// that a refused one does no work.
func TestAdmissionDo(t *testing.T) {
	a := NewAdmission(1, 0)
	exchange := func(w *httptest.ResponseRecorder) *gin.Context {
		g, _ := gin.CreateTestContext(w)
		g.Request = httptest.NewRequest("POST", "/query", nil)
		return g
	}
	f := func(work func() error, want error, retryAfter string) {
		t.Helper()
		w := httptest.NewRecorder()
		err := a.Do(exchange(w), work)
		if !errors.Is(err, want) || w.Header().Get("Retry-After") != retryAfter {
			t.Errorf("%v, Retry-After %q, want %v, %q", err, w.Header().Get("Retry-After"), want, retryAfter)
		}
	}
	failed := errors.New("failed")
	f(func() error { return nil }, nil, "")
	f(func() error { return failed }, failed, "")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Do swallowed a panic")
			}
		}()
		a.Do(exchange(httptest.NewRecorder()), func() error { panic("work") })
	}()
	if st := a.Stats(); st != (AdmissionStats{}) {
		t.Errorf("afterwards: %+v", st)
	}
	must.Succeed(t, a.Enter(t.Context(), bounds.Flow{}))
	f(func() error { t.Error("a refused query works"); return nil }, ErrBusy, "1")
}

// TestNoAdmission holds that without a bound every query enters, and that a free slot
// costs no memory.
func TestNoAdmission(t *testing.T) {
	g, _ := gin.CreateTestContext(httptest.NewRecorder())
	g.Request = httptest.NewRequest("POST", "/query", nil)
	work := func() error { return nil }
	f := func(a *Admission) {
		t.Helper()
		if n := alloctest.PerRun(100, func() {
			a.Do(g, work)
		}); n != 0 {
			t.Errorf("%g allocations", n)
		}
	}
	f(nil)
	f(NewAdmission(1, time.Second))
}

// TestAdmissionShares lets one flow ask without pause next to one that asks now and then. The
// second waits for one query of the first at most, whatever the first has waiting.
func TestAdmissionShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4
		a := NewAdmission(most, time.Hour)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		noisy := 0
		var mu sync.Mutex
		for range 200 {
			wg.Go(func() {
				for ctx.Err() == nil && a.Enter(ctx, bounds.Flow{Name: "noisy"}) == nil {
					mu.Lock()
					noisy++
					mu.Unlock()
					time.Sleep(time.Second)
					a.Leave(bounds.Flow{Name: "noisy"})
				}
			})
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if mu.Lock(); noisy < 10*most {
			t.Errorf("a flow that is alone ran %d queries on %d slots in 10 s", noisy, most)
		}
		mu.Unlock()
		for range 20 {
			begun := time.Now()
			must.Succeed(t, a.Enter(ctx, bounds.Flow{Name: "quiet"}))
			if waited := time.Since(begun); waited > time.Second {
				t.Errorf("the quiet flow waited for %s", waited)
			}
			a.Leave(bounds.Flow{Name: "quiet"})
			time.Sleep(100 * time.Millisecond)
		}
		// Both ask without pause: each has half of the slots.
		mu.Lock()
		noisy = 0
		mu.Unlock()
		second := 0
		for range 50 {
			wg.Go(func() {
				for ctx.Err() == nil && a.Enter(ctx, bounds.Flow{Name: "second"}) == nil {
					mu.Lock()
					second++
					mu.Unlock()
					time.Sleep(time.Second)
					a.Leave(bounds.Flow{Name: "second"})
				}
			})
		}
		time.Sleep(100 * time.Second)
		mu.Lock()
		if noisy < 190 || second < 190 || noisy+second < 395 {
			t.Errorf("200 askers ran %d queries, 50 askers %d", noisy, second)
		}
		mu.Unlock()
		stop()
		wg.Wait()
		if st := a.Stats(); st.Inside != 0 || st.Waiting != 0 {
			t.Errorf("in the end: %+v", st)
		}
	})
}
