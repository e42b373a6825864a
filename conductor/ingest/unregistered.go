package ingest

import (
	"strings"
	"sync"

	"example.com/conductor/conductor/registration"
)

// unregistrations are what was unregistered while the gate is closed, and not registered again. A snapshot may be older
// than that, so a recovery brings nothing of it back. They are forgotten once the gate is open.
//
// What was registered here, or what the store tells of, is always noted. A client may unregister any other name too, one that
// other replicas know or one that it made up. There is a bound on those: a tenant may note one more as long as it has fewer
// notes than there are places left.
//
// Its methods are safe for concurrent use; its lock is taken last.
type unregistrations struct {
	shared   *shared
	stop     <-chan struct{} // the server is closed
	starting sync.Once

	mu        sync.Mutex
	keys      map[registration.Key]standing // guarded by mu
	targets   map[registration.Key]bool     // by the names of targets, see discovery.Target.Name; guarded by mu
	strangers map[string]int                // keys that are strangers, by tenant; guarded by mu
	total     int                           // of strangers; guarded by mu
	full      bool                          // a stranger was not noted; guarded by mu
	over      bool                          // nothing is noted any more; guarded by mu
}

// standing is what a key was before it was unregistered.
type standing int

const (
	stranger standing = iota + 1 // of no source here
	known                        // of a source that a recovery brought, or of one that others followed
	own                          // of a source that was registered here: no other one speaks for its rank
)

// standingOf returns the standing of the key of a source, nil for none.
func standingOf(s *Source) standing {
	switch {
	case s == nil:
		return stranger
	case s.recovered:
		return known
	}
	return own
}

// AddElsewhere notes a source that was unregistered and is not followed here.
func (u *unregistrations) AddElsewhere(key registration.Key) { u.add(key, known) }

// add notes a key, unless it is a stranger for which there is no room.
func (u *unregistrations) add(key registration.Key, as standing) {
	if !u.shared.Recovering() {
		return
	}
	u.start()
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.keys[key]
	switch {
	case u.over || before >= as:
		return
	case as == stranger && !u.hasRoom(key.Tenant):
		if !u.full {
			u.full = true
			u.shared.log.Warn().Str("source", key.String()).Msg("many names that no source has are unregistered while blocks are " +
				"being recovered: a snapshot may bring some of these sources back, for five minutes")
		}
		return
	case u.keys == nil:
		u.keys, u.strangers = make(map[registration.Key]standing), make(map[string]int)
	}
	u.countStranger(key.Tenant, before, -1)
	u.countStranger(key.Tenant, as, 1)
	u.keys[key] = as
}

// hasRoom reports whether a tenant may have one more stranger. u.mu is held.
func (u *unregistrations) hasRoom(tenant string) bool {
	l := u.shared.limits.Load()
	same := u.strangers[tenant]
	return (l.MaxSources == 0 || same < l.MaxSources-u.total) && (l.MaxTenantSources == 0 || same < l.MaxTenantSources)
}

// countStranger counts a key in or out, if it is a stranger. u.mu is held.
func (u *unregistrations) countStranger(tenant string, as standing, n int) {
	if as != stranger {
		return
	}
	u.total += n
	if u.strangers[tenant] += n; u.strangers[tenant] == 0 {
		delete(u.strangers, tenant)
	}
}

// remove forgets a key that is registered again.
func (u *unregistrations) remove(key registration.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.countStranger(key.Tenant, u.keys[key], -1)
	delete(u.keys, key)
}

// SetTarget notes that the engines of a name are not asked any more, see discovery.Target.Name: their sources are
// unregistered, also those that they have not told yet. If gone is false, they are asked again.
func (u *unregistrations) SetTarget(name registration.Key, gone bool) {
	if !u.shared.Recovering() {
		return
	}
	u.start()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !gone:
		delete(u.targets, name)
	case u.over:
	case u.targets == nil:
		u.targets = map[registration.Key]bool{name: true}
	default:
		u.targets[name] = true
	}
}

// find returns the standing that a key had before it was unregistered, 0 if that was not while the gate is closed.
func (u *unregistrations) find(key registration.Key) standing {
	if !u.shared.Recovering() {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if as := u.keys[key]; as != 0 {
		return as
	}
	if len(u.targets) == 0 {
		return 0
	}
	names := []string{key.Instance}
	if at := strings.LastIndexByte(key.Instance, '@'); at >= 0 && registration.IsInstanceOf(key.Instance, key.Instance[:at]) {
		names = append(names, key.Instance[:at]) // one of several addresses
	}
	for _, name := range names {
		for _, rank := range []int{registration.AllRanks, key.Rank} {
			if u.targets[registration.Key{Instance: name, Tenant: key.Tenant, Rank: rank}] {
				return known
			}
		}
	}
	return 0
}

// forget forgets everything, and notes nothing any more.
func (u *unregistrations) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.keys, u.targets, u.strangers, u.total, u.over = nil, nil, nil, 0, true
}

// start lets u forget everything once the gate is open, or stop is closed.
func (u *unregistrations) start() {
	u.starting.Do(func() {
		go func() {
			select {
			case <-u.shared.gate:
			case <-u.stop:
			}
			u.forget()
		}()
	})
}
