// Package doctor compares the events of a source with its registration.
//
//	registration --New-------> Doctor
//	batch, event --Observe---> Doctor --> Findings
//	time --Silence, Unremoved> Doctor
//
// A Doctor changes nothing but its findings. It holds no index and asks no clock but the
// one it is given. Observe costs nothing once a check has seen its sample.
//
// Ranks compares the ranks of batches in the same way, and is judged again when other sources come or go.
//
// One goroutine at a time may call the methods of a Doctor. Those of Ranks and Findings, Silence
// included, are safe for concurrent use. Seeds are shared by all sources of a context.
package doctor

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

const (
	// Sample is how many stored events with tokens show the state of a source.
	Sample = 32
	// oddLeast events of another size or context are more than a last short page.
	oddLeast = 4
	// maxTypes bounds the unknown types of events that a finding names: publishers
	// invent them.
	maxTypes = 16
	// maxSeeds is how many beginnings of prompts are compared between sources.
	maxSeeds = 256
)

// Registered is what a Doctor knows of a registration.
type Registered struct {
	Key      string // instance, tenant and rank in one text
	Rank     int
	Context  scope.Context
	Type     string // sources of one type hash alike
	Topic    string // of its batches, where the publisher numbers those of several sources together
	SGLang   bool   // the engine is SGLang
	Pool     bool   // the source is no engine
	Chunks   bool   // the source announces chunks of several blocks
	Reports  string // what a store of a block that the engine has means, "" is not known
	Expiring func(medium string) bool
}

// Doctor is the state of one source's checks.
type Doctor struct {
	// Findings are what the checks found, and what others report of the source. Other goroutines may use them.
	Findings Findings
	reg      Registered

	sized       int      // stored events with tokens
	larger, odd int      // of them those of a multiple of the registered size, and those of another one
	home, away  int      // those in the registered context, and elsewhere
	seeds       int      // beginnings compared
	note        string   // of the first batch with one
	parentless  bool     // most blocks waited for a parent at the last look
	types       []string // of events that nothing is known of, at most maxTypes
	profile     profileCheck
	copies      copyCheck
	account     account
	full        bool                  // the balance of copies has shown full reports; no epoch ends that
	unremoved   map[string]*unremoved // by medium; see unremovedOn
	neverFrom   []string              // media of the finding no_removals
}

// New returns the doctor of a source. now is the clock of Finding.Since.
func New(reg Registered, now func() time.Time) *Doctor {
	return &Doctor{reg: reg, Findings: Findings{now: now}}
}

// Reset forgets what an epoch of the publisher has shown. It keeps findings that do not depend on the epoch: those about the
// registration, about reports and about messages.
func (d *Doctor) Reset() {
	d.sized, d.larger, d.odd, d.home, d.away, d.seeds, d.profile = 0, 0, 0, 0, 0, 0, profileCheck{}
	d.note, d.types = "", nil
	d.copies, d.parentless, d.account = copyCheck{}, false, account{}
	d.unremoved, d.neverFrom = nil, nil
	d.Findings.withdrawWhere(func(code string) bool {
		return code != FindingRank && code != FindingSeveralRanks && code != FindingAlias && code != FindingFeedback &&
			code != FindingUnusable && code != FindingStorm && code != FindingForeignReplay &&
			!(code == FindingCopies && d.full) && !(code == FindingProfile && d.reg.Pool)
	})
}

// Observation is one stored or removed event, or several joined, and its effect.
type Observation struct {
	Event  *events.Event // as published
	Medium tiers.Medium
	Count  int // blocks as published, objects of a pool

	// Of blocks that are not objects.
	Blocks  bool
	Counted bool          // repeated stores count as copies
	Context scope.Context // of a stored event
	Refused events.Reason // why no block of a stored event was indexed, "" if some were

	// Of a stored event that was not refused.
	Cut      *events.Event // the event with every block cut into Parts of the registered size
	Parts    int
	EverCut  bool                     // blocks were cut in this epoch
	Local    []uint64                 // local hashes of the blocks of Cut; nil if only the hashes count
	Seeds    *Seeds                   // of the context; nil if the source has not entered it
	Profiles *map[string]hash.Profile // of the deployment, by adapter; nil if there is none
	Added    int                      // parts that their holder did not have
	Copies   int                      // parts that their holder had
	// Undecided are the parts that wait for an event that says whose they are.
	Undecided int

	Found int // blocks of a removed event that their holder had
}

// Observe looks at one event.
func (d *Doctor) Observe(o *Observation) {
	if o.Event.Kind == events.Removed {
		d.observeRemoved(o.Event, o.Medium)
		if o.Blocks {
			d.observeCopyRemoval(o)
		}
		return
	}
	d.observeStored(o.Event, o.Medium, o.Count)
	if o.Refused == "" {
		d.countStored(o)
	} else {
		d.Lose(o.Refused, o.Event.Count())
	}
	if !o.Blocks {
		return
	}
	d.observeSize(o)
	if o.Refused != "" {
		return
	}
	d.observeContext(&o.Context, o.Event.Count())
	if o.Local != nil && o.Seeds != nil && !d.reg.Chunks { // chunks have hashes of their own
		d.observeSeed(o)
		d.observeProfile(o)
	}
	d.observeCopies(o)
	d.observeNamespaces(o)
}

// ObserveBatch checks what a batch says about itself.
func (d *Doctor) ObserveBatch(b *events.Batch) {
	d.observeForms(b)
	if b.Astray {
		d.account.astray++
	}
	for reason, n := range b.Dropped {
		d.Lose(reason, n)
	}
}

// observeForms checks events that were skipped because of their type or shape.
func (d *Doctor) observeForms(b *events.Batch) {
	news := d.note == "" && b.Note != ""
	if news {
		d.note = b.Note
	}
	for _, name := range b.Unknown {
		if len(d.types) <= maxTypes && !slices.Contains(d.types, name) {
			d.types, news = append(d.types, name), true
		}
	}
	if !news {
		return
	}
	var seen []string
	for i, name := range d.types {
		if i == maxTypes {
			seen = append(seen, "others")
			break
		}
		seen = append(seen, strconv.Quote(name))
	}
	switch text := strings.Join(seen, ", "); {
	case d.note == "":
		d.Findings.Update(FindingVersion,
			"events of unknown types are skipped, %s: a newer engine or another one; other events are unaffected", text)
	case text == "":
		d.Findings.Update(FindingVersion, "an event was skipped, %s: a newer engine or a broken one; other events are unaffected", d.note)
	default:
		d.Findings.Update(FindingVersion,
			"events were skipped, %s and those of the types %s: a newer engine or a broken one; other events are unaffected", d.note, text)
	}
}

// observeSize checks the block size of a stored event, before its blocks are cut.
func (d *Doctor) observeSize(o *Observation) {
	e, registered := o.Event, o.Context.Deployment.BlockSize
	if d.sized >= Sample || len(e.Tokens) == 0 || e.Envelope {
		return
	}
	d.sized += e.Count()
	fits := e.BlockSize%registered == 0 && o.Refused != events.BlockSizeMismatch
	if e.BlockSize == 0 || e.BlockSize == registered || d.reg.Chunks && fits {
		return
	}
	seen := &d.odd
	if fits {
		seen = &d.larger
	}
	switch *seen += e.Count(); {
	case *seen < oddLeast || 2**seen < d.sized:
	case fits:
		d.Findings.Report(FindingLargerBlocks,
			"events announce blocks of %d tokens, registered is %d: each is indexed as %d blocks, which count only for prompts that have "+
				"all of them; register block_size %d if routers can ask in that size",
			e.BlockSize, registered, e.BlockSize/registered, e.BlockSize)
	default:
		d.Findings.Report(FindingBlockSize,
			"events announce blocks of %s, registered is %d: they cannot be indexed; register block_size %d",
			spelling.Count(e.BlockSize, "token"), registered, e.BlockSize)
	}
}

// observeContext looks at where some stored events belong. Salts differ by user and say
// nothing about a registration. Nor do adapters where the registration names none: an engine
// that serves several is registered for its base model.
func (d *Doctor) observeContext(at *scope.Context, count int) {
	if d.home+d.away >= Sample || d.reg.Pool {
		return
	}
	home := &d.reg.Context
	if at.Deployment == home.Deployment && (home.Variant.Lora == "" || at.Variant.Lora == home.Variant.Lora) {
		d.home += count
		d.Findings.Withdraw(FindingContext)
		return
	}
	if d.away += count; d.home > 0 || d.away < oddLeast {
		return
	}
	d.Findings.Report(FindingContext,
		"every event is about model %q, adapter %q, block size %d, tenant %q; registered is model %q, adapter %q, block size %d, tenant "+
			"%q, and queries for that find nothing: correct the registration, or ask for what the events say",
		at.Deployment.Model, at.Variant.Lora, at.Deployment.BlockSize, at.Deployment.Tenant,
		home.Deployment.Model, home.Variant.Lora, home.Deployment.BlockSize, home.Deployment.Tenant)
}

// Seeds are the beginnings of prompts seen in one context.
type Seeds struct {
	mu    sync.Mutex
	first map[seedKey]seed // guarded by mu
}

// seedKey is the first block of a prompt as publishers of one type see it.
type seedKey struct {
	typ   string
	local uint64
}

// seed is the first announcement of a seedKey.
type seed struct {
	engine uint64
	by     string // Registered.Key
}

// firstAnnouncement returns the first announcement of a block. If there was none before, it records s and returns that.
func (x *Seeds) firstAnnouncement(key seedKey, s seed) seed {
	x.mu.Lock()
	defer x.mu.Unlock()
	first, known := x.first[key]
	if known {
		return first
	}
	if x.first == nil {
		x.first = make(map[seedKey]seed)
	}
	if len(x.first) < maxSeeds {
		x.first[key] = s
	}
	return s
}

// observeSeed compares the engine hash of a prompt's first block with what others
// called the same tokens. It compares blocks of the base model without a salt: releases
// hash adapters, salts and images in several forms, and vLLM the path of an adapter.
func (d *Doctor) observeSeed(o *Observation) {
	e := o.Cut
	if d.seeds >= Sample || o.Context.Variant != (scope.Variant{}) || o.EverCut || o.Medium.Tier != tiers.Device ||
		e.HasParent || e.Envelope || e.Items != nil || len(e.Hashes) == 0 {
		return
	}
	d.seeds++
	engine := e.Hashes[0]
	switch first := o.Seeds.firstAnnouncement(seedKey{d.reg.Type, o.Local[0]}, seed{engine, d.reg.Key}); {
	case first.engine == engine:
	case first.by == d.reg.Key:
		d.Findings.Report(FindingSeed,
			"the engine gave equal tokens two hashes (%#x, then %#x): its hash seed is random, so blocks announced without tokens cannot "+
				"be compared between engines; set PYTHONHASHSEED", first.engine, engine)
	default:
		d.Findings.Report(FindingSeed,
			"equal tokens have another hash here than at %s (%#x there, %#x here): seed or algorithm differ, so blocks announced without "+
				"tokens cannot be compared between engines; set the same PYTHONHASHSEED and algorithm", first.by, first.engine, engine)
	}
}

// Demand is what queries show that a source should have announced since it was last heard.
type Demand struct {
	Fresh uint64 // queries for blocks that no instance had; the instance that computes them announces them
	Ranks int    // sources that share the queries, with this one
	Heard int    // of them: announced something of late
}

// fairShare is how many prompts each rank has computed on average by the time when one that has computed none stands out. By
// chance that happens to one in millions.
const fairShare = 16

// heardLeast is how many others must have announced something: one beside a standby says nothing about that.
const heardLeast = 3

// includes reports whether the source should have announced something. If none of the ranks has, one prompt for each is enough.
// While few of them have, the router may leave the others alone.
func (x *Demand) includes() bool {
	switch ranks := uint64(x.Ranks); {
	case x.Heard == 0:
		return x.Fresh > 0 && x.Fresh >= ranks
	case x.Heard >= heardLeast && 2*x.Heard > x.Ranks:
		return x.Fresh >= fairShare*ranks
	}
	return false
}

// Silence looks at how long the source has sent nothing, and at what it should have sent. Its stream is up.
func (d *Doctor) Silence(quiet, limit time.Duration, demand Demand) {
	switch {
	case quiet < limit:
		d.Findings.Withdraw(FindingSilent)
	case demand.includes():
		d.Findings.Update(FindingSilent,
			"no event for %s, while %s for model %q had blocks that no instance had, and %d of %s announced something of late: is prefix "+
				"caching on, and are KV events enabled in the engine?",
			quiet.Round(time.Second), spelling.Count(demand.Fresh, "query"), d.reg.Context.Deployment.Model, demand.Heard,
			spelling.Count(demand.Ranks, "rank"))
	}
}

// Use records whether queries ask for what the source has, and whether any ask for its model.
func (d *Doctor) Use(blocks int, asked, modelAsked bool) {
	switch {
	case asked || blocks == 0:
		d.Findings.Withdraw(FindingUnasked)
	case modelAsked:
		d.Findings.Report(FindingUnasked,
			"queries ask for model %q, and none with the salt and adapter of the %d blocks of the source: compare cache_salt and "+
				"lora_name of the queries with those of its events and its registration",
			d.reg.Context.Deployment.Model, blocks)
	}
}

// waitingLeast is how many blocks must wait for their parents before the doctor says so.
const waitingLeast = 64

// Parents looks at how many blocks of the source wait for a parent that no event has announced, and at
// how many it has in all. full says that there is no room for more. Blocks that wait may be ahead of
// their parents, so the finding comes when two calls in a row have seen too many.
func (d *Doctor) Parents(waiting, blocks int, full bool) {
	before := d.parentless
	d.parentless = waiting >= waitingLeast && (full || 2*waiting >= blocks)
	switch {
	case !d.parentless:
		d.Findings.Withdraw(FindingParents)
	case before:
		d.Findings.Report(FindingParents,
			"%d of %d blocks wait for parents that no event has announced, and no query finds them: give a replay_endpoint if the engine "+
				"ran before Conductor followed it, register all of its ranks, and if neither helps, the publisher names parents in a way "+
				"that Conductor does not know: report its name and version",
			waiting, blocks)
	}
}

// A block that stays less than shortLife on a device may be gone when the request arrives. The
// finding goes when blocks stay twice as long.
const shortLife = 10 * time.Second

// Life records how many evictions a second there are on a medium for each block that it has.
func (d *Doctor) Life(medium string, hazard float64) {
	if medium != tiers.NameDevice {
		return
	}
	switch stays := time.Duration(float64(time.Second) / max(hazard, 1e-6)); {
	case stays >= 2*shortLife:
		d.Findings.Withdraw(FindingShortLived)
	case stays < shortLife:
		d.Findings.Report(FindingShortLived,
			"blocks stay some %s on the device: the engine's cache is too small for its load, and what an answer promises may be gone "+
				"when the request arrives; spread the load, or give the engine more memory or a host tier",
			stays.Round(100*time.Millisecond))
	}
}
