package conductor

import (
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/tiers"
)

// contexts are the contexts of all deployments: who holds blocks in each, and what engine
// hashes mean there. Sources enter and leave contexts.
type contexts struct {
	registry
	options index.Options // of every index
	log     zerolog.Logger
	recall  *recall // nil for none

	maxContexts int // of one source; 0 is no bound
}

// contextBytes is what a context takes without blocks, with the holdings of one source in it.
const contextBytes = 12 << 10

// contextSerial numbers contexts.
var contextSerial atomic.Uint64

// enterContext gives a source a namespace in a context, making both when new.
func (c *contexts) enterContext(s *source, key scope.Context) *namespace {
	ns := &namespace{owners: make(map[normalize.Owner]*holder), instance: tiers.Pool}
	c.mu.Lock()
	d := c.deploymentOf(key.Deployment)
	x := d.context(key.Variant)
	if x == nil {
		x = &indexContext{
			key: key.Variant, deployment: d, scheme: c.options.Scheme, log: c.log,
			sources:    make(map[index.Source]*source),
			serial:     contextSerial.Add(1),
			translates: c.options.KeepClientHashes && dynamoSeed(key.Variant) != c.options.Scheme.Seed,
		}
		options := c.options
		options.Remember, options.Contradicts = x.mayRecall, x.contradicts
		x.index = index.New(options)
		options.Budget.Charge(contextBytes)
		d.contexts.Store(key.Variant, x)
	}
	d.refs++
	x.refs++
	s.visit(d)
	if key.Variant.Lora != "" && key.Variant.Lora != s.reg.Lora {
		d.adapted.Store(true)
	}
	if key.Variant.Salt != "" && key.Variant.Salt != s.reg.Salt {
		d.salted.Store(true)
	}
	if s.reg.pool() {
		ns.serves = d.ids(s.reg.Serves)
	} else {
		ns.instance = d.instance(s.reg.Instance).id
		lora := key.Variant.Lora
		if key.Deployment == s.deploymentKey() && lora != s.reg.Lora && !slices.Contains(s.announced, lora) {
			s.announced = append(s.announced, lora)
			d.publish(s)
		}
	}
	c.mu.Unlock()
	ns.context, ns.source = x, x.index.NewSource()
	c.mu.Lock()
	x.sources[ns.source] = s
	c.mu.Unlock()
	if s.reg.pool() {
		// A pool mentions what engines have taught. An index that began to name its blocks at such a mention
		// would not know most of them until it is through, and the pool's blocks would wait meanwhile.
		x.index.NameAll()
	}
	return ns
}

// exitContext drops everything a source holds in a context, and the context with its
// last namespace.
func (c *contexts) exitContext(s *source, ns *namespace) {
	x := ns.context
	x.index.DropSource(ns.source)
	x.tidy()
	if c.recall == nil {
		if c.removeNamespace(s, ns) {
			c.options.Budget.Charge(-contextBytes)
			x.unlistAll()
		}
		return
	}
	c.recall.move.Lock()
	defer c.recall.move.Unlock()
	if c.removeNamespace(s, ns) {
		c.options.Budget.Charge(-contextBytes)
		x.unlistAll()
		c.recallAll(x)
	}
}

// recallForgotten remembers the names that an index has forgotten if an event may ask for them.
func (c *contexts) recallForgotten(x *indexContext) {
	if c.recall == nil || !x.index.Forgets() {
		return
	}
	c.recall.move.Lock()
	defer c.recall.move.Unlock()
	if names := x.index.Forgotten(); x.mayRecall() {
		c.recall.remember(x, names)
	}
	c.mu.Lock()
	x.lookAheads.fade()
	c.mu.Unlock()
}

// recallAll remembers what a context knew that has just gone. recall.move is held.
func (c *contexts) recallAll(x *indexContext) {
	if !x.mayRecall() {
		return
	}
	var names []index.Name
	x.index.Names(func(n index.Name) bool {
		names = append(names, n)
		return len(names) < c.recall.most
	})
	c.recall.remember(x, append(names, x.index.Forgotten()...))
}

// meaning is the context and the key for which an engine hash stands.
type meaning struct {
	at         scope.Variant
	key        uint64
	lookAheads lookAheads // that the block may have
}

// meaning returns the meaning of a name with a key. before are the look-aheads that names
// could have before the index was asked.
func (x *indexContext) meaning(key uint64, before lookAheads) meaning {
	return meaning{x.key, key, max(before|x.lookAheads.ofNames(), noLookAhead)}
}

// meaningOf returns where in a deployment an engine hash is or was known, among
// contexts that fit. Of several that know it, home comes first, then the least. It
// searches up to most others, in any order.
func (c *contexts) meaningOf(dk scope.Deployment, engine uint64, home scope.Variant, fits func(scope.Variant) bool, most int) (m meaning, known bool) {
	d := c.deployment(dk)
	if d == nil {
		return m, false
	}
	if x := d.context(home); x != nil && fits(home) { // first: the others may be as many as users
		if m, known = c.meaningIn(x, engine); known {
			return m, true
		}
	}
	return c.meaningElsewhere(d, engine, home, fits, most)
}

// meaningIn returns what an engine hash means in one context.
func (c *contexts) meaningIn(x *indexContext, engine uint64) (m meaning, known bool) {
	before := x.lookAheads.ofNames() // those of the name may fade meanwhile
	key, known := x.index.Means(engine)
	if !known {
		c.recallForgotten(x) // now, when it may have forgotten
		return m, false
	}
	return x.meaning(key, before), true
}

// meaningElsewhere is meaningOf but for home.
func (c *contexts) meaningElsewhere(d *deployment, engine uint64, home scope.Variant, fits func(scope.Variant) bool, most int) (m meaning, known bool) {
	d.contexts.Range(func(_, v any) bool {
		if x := v.(*indexContext); x.key != home && fits(x.key) {
			if found, ok := c.meaningIn(x, engine); ok && (!known || x.key.Less(m.at)) {
				m, known = found, true
			}
			most--
		}
		return most > 0
	})
	if known {
		return m, true
	}
	if m, known = c.recall.findCounted(d.key, engine); known && fits(m.at) {
		return m, true
	}
	return meaning{}, false
}
