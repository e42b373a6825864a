package ingest

import "time"

// Place reserves room under limits.max_sources for an engine that is connected but not registered yet: its first events have to tell
// the block size. A nil Place is none.
type Place struct {
	holder  Holder
	sources *Sources
	since   time.Time
}

// Holder says who holds a place.
type Holder struct {
	Tenant string
	Static bool // as in RegisterOptions
	// GivesWay reports whether registrations may take the place where there are too many, as those of sources that give way. It
	// must not call the Sources, and neither must GiveWay.
	GivesWay func() bool
	// GiveWay is called when a registration takes the place, also that of its own source.
	GiveWay func()
}

// HoldPlace reserves a place for a source that is registered later, with RegisterOptions.Place; Release gives it back. Errors:
// ErrTooManySources, ErrTenantFull, which is one too, ErrClosed.
func (c *Sources) HoldPlace(h Holder) (*Place, error) {
	p := &Place{holder: h, sources: c, since: c.now()}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	from, err := findPlace(c, h.Tenant, &RegisterOptions{Static: h.Static, GivesWay: h.GivesWay()})
	var gone []*Source
	if err == nil {
		gone = giveWay(c, from, "an engine that is asked")
		c.held[p] = true
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, s := range gone {
		c.retire(s)
	}
	return p, nil
}

// Release gives a place back that no registration has taken. It changes nothing the second time.
func (p *Place) Release() {
	if p == nil {
		return
	}
	p.sources.mu.Lock()
	defer p.sources.mu.Unlock()
	delete(p.sources.held, p)
}

// givingWay is what gives way: the holder of a place, a source, or neither where there is room.
type givingWay struct {
	place  *Place
	source *Source
}

// findPlace returns what gives way to a source of a tenant. Sources.mu is held.
func findPlace(c *Sources, tenant string, opts *RegisterOptions) (givingWay, error) {
	if c.held[opts.Place] {
		return givingWay{place: opts.Place}, nil
	}
	limits := c.limits.Load()
	tenantFull := limits.MaxTenantSources > 0 && !opts.Static && countFor(c, tenant) >= limits.MaxTenantSources
	if !tenantFull && (limits.MaxSources <= 0 || len(c.sources)-c.recovered+len(c.held) < limits.MaxSources) {
		return givingWay{}, nil
	}
	if !opts.GivesWay {
		if from := newestGivingWay(c, func(of string) bool { return !tenantFull || of == tenant }); from != (givingWay{}) {
			return from, nil
		}
	}
	return givingWay{}, c.Places.TooMany(tenantFull)
}

// countFor returns how many places clients have taken for a tenant. Sources.mu is held.
func countFor(c *Sources, tenant string) (n int) {
	for _, s := range c.sources {
		if !s.recovered && !s.Static && s.Registration.Tenant == tenant {
			n++
		}
	}
	for p := range c.held {
		if !p.holder.Static && p.holder.Tenant == tenant {
			n++
		}
	}
	return n
}

// newestGivingWay returns the newest holder that gives way, else the newest source that does, among those of tenants that may make room.
// It returns neither if there is none. Sources.mu is held.
func newestGivingWay(c *Sources, may func(tenant string) bool) (found givingWay) {
	for p := range c.held {
		if p.holder.GivesWay() && may(p.holder.Tenant) && (found.place == nil || p.since.After(found.place.since)) {
			found.place = p
		}
	}
	if found.place != nil {
		return found
	}
	for _, s := range c.sources {
		if s.givesWay.Load() && may(s.Registration.Tenant) && (found.source == nil || s.opened.After(found.source.opened)) {
			found.source = s
		}
	}
	return found
}

// giveWay frees the place that findPlace chose; user names who gets it, for the log. It returns the source that has to be retired, if
// there is one. Sources.mu is held.
func giveWay(c *Sources, from givingWay, user string) (gone []*Source) {
	if from.place != nil {
		delete(c.held, from.place)
		from.place.holder.GiveWay()
	}
	if s := from.source; s != nil {
		delete(c.sources, s.Registration.Key())
		c.Unregistered.add(s.Registration.Key(), standingOf(s))
		c.removeSource(s)
		c.catalog.Replace(s.Member, nil)
		c.log.Info().Str("source", s.Registration.Key().String()).Str("for",
			user).Msg("source gives way, because there are too many")
		gone = append(gone, s)
	}
	return gone
}
