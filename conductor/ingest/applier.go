package ingest

import (
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/pool"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/index"
)

// applier turns what a source's publisher says into changes of what the source holds. Its methods are called with the turn of
// the source held, which guards all fields but the atomic ones, unless a method says otherwise. It knows no stream: what a
// batch means for the state of the source, the source reads from it afterwards.
type applier struct {
	member   *catalog.Member
	reg      *registration.Registration // of member
	holdings *holdings
	shared   *shared
	doctor   *doctor.Doctor

	normal   *normalize.Normalizer  // learns what the events of the publisher mean
	adapters map[uint64]*string     // names of adapters by lora_id, see adapters.go
	versions versions               // of adapters, see versions.go
	assumed  int                    // blocks whose adapter and salt are a guess
	chunks   map[string]*chunkGuess // by medium, see chunks.go

	// repeated: put has stored blocks that were there already, since storeBlocks began.
	repeated bool
	// stored is what put stored last. clientHashes are those of its blocks, nil if they are their
	// local hashes; clientBuffer has them.
	stored                     index.Store
	clientHashes, clientBuffer []uint64
	expectedKeys               []uint64 // buffer of confirmExpected

	effects effects   // of the step at hand on other sources
	at      time.Time // when the step under way came
	news    bool      // it is no replay

	// pool has the objects of a store, nil for engines.
	pool       *pool.Pool
	objects    atomic.Int64 // of the pool
	bound      atomic.Int64 // bytes that the objects take
	incomplete atomic.Int64 // blocks of the pool that lack objects

	// refusedEvents are those of the batch at hand that were refused because they contradict the
	// registration or the settings, refusedAs the last reason.
	refusedEvents int
	refusedAs     events.Reason

	origin  atomic.Pointer[string]   // of Recovery.Origin, nil without a recovery
	dropped map[events.Reason]uint64 // of single events; guarded by holdings.mu
}

// forgetLearned forgets what the applier has learned.
func (a *applier) forgetLearned() {
	a.normal.Reset()
	a.noteWindow()
	a.adapters, a.versions, a.assumed, a.chunks = nil, versions{}, 0, nil
	if a.pool != nil {
		a.pool.Reset()
		a.noteObjects()
	}
	a.doctor.Reset()
	a.member.Ranks.Reset()
	a.member.Lives.Forget()
}
