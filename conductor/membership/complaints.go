package membership

import (
	"maps"
	"time"
)

// complainEvery is the pause between two lines of the log about entries that are not taken over.
const complainEvery = time.Minute

// complaints are the entries that were refused since the last line of the log. Anybody who can write to the
// store can write many of them.
type complaints struct {
	counts  map[string]int // by reason
	logged  time.Time      // zero before the first line
	entry   string         // the first one, as an example
	reason  string
	replica string
	err     error // nil if it cannot be read
}

// countRefusal counts an entry that is not taken over, in metrics and for the log. err says why, and is nil for an entry that
// cannot be read.
func (g *Registry) countRefusal(reason, entry, replica string, err error) {
	g.mu.Lock()
	g.refused[reason]++
	g.mu.Unlock()
	g.addComplaint(reason, entry, replica, err)
}

// addComplaint counts an entry that the next line of the log mentions.
func (g *Registry) addComplaint(reason, entry, replica string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.complaints
	if c.counts == nil {
		c.counts, c.entry, c.reason, c.replica, c.err = make(map[string]int), shortened(entry), reason, shortened(replica), err
	}
	c.counts[reason]++
}

// logComplaints logs what was refused, at most once in complainEvery.
func (g *Registry) logComplaints(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.complaints
	if c.counts == nil || !c.logged.IsZero() && now.Sub(c.logged) < complainEvery {
		return
	}
	g.cfg.Log.Warn().Interface("refused", maps.Clone(c.counts)).Str("example", c.entry).Str("reason", c.reason).Str("replica",
		c.replica).Err(c.err).
		Msg("entries of the registry are not taken over by this replica")
	*c = complaints{logged: now}
}

// shortened returns the beginning of a text that anybody may have written.
func shortened(text string) string {
	if len(text) > 200 {
		return text[:200] + "…"
	}
	return text
}
