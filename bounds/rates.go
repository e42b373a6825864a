package bounds

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxKeys is how many keys Rates remembers. Beyond it those that have spent nothing of late are forgotten.
const maxKeys = 16_384

// Rates lets each key, a flow or an address, spend a number a second, and save up a burst of it. A nil Rates is no bound.
type Rates struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex
	byKey map[string]*rate.Limiter // guarded by mu
}

// NewRates lets each key spend perSecond on average, and up to burst at once.
func NewRates(perSecond float64, burst int) *Rates {
	return &Rates{perSecond: rate.Limit(perSecond), burst: burst, byKey: make(map[string]*rate.Limiter)}
}

// limiterOf returns the limiter of a key. It makes one if there is none.
func (r *Rates) limiterOf(key string, now time.Time) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.byKey[key]
	if l != nil {
		return l
	}
	if len(r.byKey) >= maxKeys {
		for other, l := range r.byKey {
			if l.TokensAt(now) >= float64(r.burst) {
				delete(r.byKey, other)
			}
		}
		if len(r.byKey) >= maxKeys { // all are in use: better a second burst for each than no memory
			clear(r.byKey)
		}
	}
	l = rate.NewLimiter(r.perSecond, r.burst)
	r.byKey[key] = l
	return l
}

// Spend takes n from what a key may spend, the burst if n is more. It returns ErrShare, and takes nothing, if the key has
// less.
func (r *Rates) Spend(key string, n int, now time.Time) error {
	if r == nil || r.limiterOf(key, now).AllowN(now, min(n, r.burst)) {
		return nil
	}
	return ErrShare
}

// Charge takes n from what a key may spend, the burst if n is more, although the key may then have less than nothing.
func (r *Rates) Charge(key string, n int, now time.Time) {
	r.limiterOf(key, now).ReserveN(now, min(n, r.burst))
}

// Check returns ErrShare if a key can spend nothing now.
func (r *Rates) Check(key string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.byKey[key]; l != nil && l.TokensAt(now) < 1 {
		return ErrShare
	}
	return nil
}
