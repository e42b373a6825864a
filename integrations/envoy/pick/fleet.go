package pick

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/client"
)

// engine is an instance whose endpoint is known.
type engine struct {
	client.Instance
	base     string // URL of its HTTP server
	endpoint string // "ip:port"
	ranks    []int  // at least one
	*load
}

// load is what is known of an endpoint. It outlives changes of the fleet. Chooser.mu guards it.
type load struct {
	byRank map[int]*rankLoad
	// inFlight are requests of this picker that have not ended, or whose prompts are computed here for another engine; started are
	// those of them with a first token.
	inFlight, started int

	failures int       // in a row
	silent   int       // requests without an answer in a row
	failedAt time.Time // the last failure
	until    time.Time // when the engine may be chosen again
	// unreachable says that it took no connection when it was asked for its metrics.
	unreachable bool

	// computed are the last reports whose prompts have a first token, by when they got it. Conductor may wait for blocks of them still.
	computed []computed
	others   float64 // tokens that the engine is expected to compute for other pickers, until Chooser.othersUntil

	waiting, running, cacheUse float64   // by the engine's own account
	scraped                    time.Time // when; zero for never
}

// rankLoad is what this picker has sent to a rank.
type rankLoad struct {
	queued float64 // tokens to compute before the first tokens of requests in flight
	chosen uint64  // number of the last choice that went here

	sent   float64   // tokens to compute that were sent there of late: each counts for less the longer ago, see recent
	sentAt time.Time // when sent was as it is
}

// recentTime is how long it takes until what was sent to a rank counts for 1/e.
const recentTime = 30 * time.Second

// recent returns how many tokens a second this picker has sent to a rank of late.
func (r *rankLoad) recent(now time.Time) float64 {
	return r.sent * math.Exp(-max(0, now.Sub(r.sentAt).Seconds())/recentTime.Seconds()) / recentTime.Seconds()
}

// send counts tokens that are sent to a rank.
func (r *rankLoad) send(tokens float64, now time.Time) {
	r.sent, r.sentAt = r.recent(now)*recentTime.Seconds()+tokens, now
}

func (l *load) rank(rank int) *rankLoad {
	r := l.byRank[rank]
	if r == nil {
		r = new(rankLoad)
		l.byRank[rank] = r
	}
	return r
}

// queued returns the tokens that all ranks have to compute.
func (l *load) queued() (sum float64) {
	for _, r := range l.byRank {
		sum += r.queued
	}
	return sum
}

// fleet is the engines at one time, and does not change. Within each list they are sorted by name.
type fleet struct {
	all        []*engine
	byModel    map[string][]*engine // by model, alias and adapter
	byEndpoint map[string]*engine
	onlyModel  string // "" if there are several
	unusable   int    // instances without an address, or whose host has none
}

// fleetKeeper has what a fleet is made of: the instances that Conductor knows, and the addresses of their hosts.
type fleetKeeper struct {
	mu        sync.Mutex // held while the fleet changes, never together with a request
	instances []client.Instance
	missing   map[instanceKey]missing
	addresses map[string]netip.Addr // by host name; one that cannot be resolved any more keeps its last one
}

type instanceKey struct{ tenant, model, instance string }

func keyOf(i client.Instance) instanceKey { return instanceKey{i.Tenant, i.Model, i.Instance} }

// missing is an instance that was in the last list before Conductor was away, and is not in those since. It stays until a time that
// does not move if Conductor is away again.
type missing struct {
	client.Instance
	until time.Time
}

// resolveEvery is how often host names in addresses of engines are resolved again.
const resolveEvery = 30 * time.Second

// resolveTimeout bounds how long a change of the fleet waits for the addresses of new hosts.
const resolveTimeout = 5 * time.Second

// keepMissing is how long engines stay that a Conductor does not know any more when it comes back. One that has restarted may hear of
// them again only after a while, and they live meanwhile.
const keepMissing = time.Minute

// setInstances makes a fleet of the instances that Conductor knows. It resolves the names of hosts that are new. back says that Conductor
// was away before.
func (c *Chooser) setInstances(ctx context.Context, all []client.Instance, back bool) {
	c.keeper.mu.Lock()
	defer c.keeper.mu.Unlock()
	if back {
		c.keeper.keepUntil(c.Now().Add(keepMissing))
	}
	c.keeper.instances = slices.Clone(all)
	c.rebuild(ctx, false)
}

// resolveAgain resolves all hosts.
func (c *Chooser) resolveAgain(ctx context.Context) {
	c.keeper.mu.Lock()
	defer c.keeper.mu.Unlock()
	c.rebuild(ctx, true)
}

// known returns the instances that Conductor knows, and those that it may have forgotten while it was away.
func (k *fleetKeeper) known(now time.Time) []client.Instance {
	for _, i := range k.instances {
		delete(k.missing, keyOf(i))
	}
	all := slices.Clone(k.instances)
	for key, i := range k.missing {
		if now.Before(i.until) {
			all = append(all, i.Instance)
		} else {
			delete(k.missing, key)
		}
	}
	return all
}

// keepUntil keeps the instances of the last list until a time, if the next list does not have them.
func (k *fleetKeeper) keepUntil(until time.Time) {
	for _, i := range k.instances {
		k.missing[keyOf(i)] = missing{i, until}
	}
}

// rebuild makes the fleet of the instances. The caller holds keeper.mu.
func (c *Chooser) rebuild(ctx context.Context, resolveAll bool) {
	instances := c.keeper.known(c.Now())
	names, hosts := make(map[string]bool), make(map[string]bool)
	for _, i := range instances {
		if host, _, ok := hostOf(i.Address); ok {
			if _, err := netip.ParseAddr(host); err != nil {
				names[host] = true
			}
			hosts[host] = true
		}
	}
	c.resolve(ctx, names, resolveAll)
	for host := range c.keeper.addresses {
		if !hosts[host] {
			delete(c.keeper.addresses, host)
		}
	}

	f := &fleet{byModel: make(map[string][]*engine), byEndpoint: make(map[string]*engine)}
	for _, i := range instances {
		if cmp.Or(i.Tenant, "default") != cmp.Or(c.Tenant, "default") {
			continue
		}
		host, port, ok := hostOf(i.Address)
		addr, err := netip.ParseAddr(host)
		if ok && err != nil {
			addr, ok = c.keeper.addresses[host]
		}
		if !ok {
			f.unusable++
			continue
		}
		e := &engine{Instance: i, base: i.Address, endpoint: netip.AddrPortFrom(addr.Unmap(), port).String(), ranks: i.Ranks}
		if len(e.ranks) == 0 {
			e.ranks = []int{0}
		}
		f.all = append(f.all, e)
	}
	slices.SortFunc(f.all, func(a, b *engine) int {
		return cmp.Or(cmp.Compare(a.Instance.Instance, b.Instance.Instance), cmp.Compare(a.Model, b.Model))
	})
	for _, e := range f.all {
		served := append(append([]string{e.Model}, e.Aliases...), e.Adapters...)
		slices.Sort(served)
		for _, name := range slices.Compact(served) {
			f.byModel[name] = append(f.byModel[name], e)
		}
		f.byEndpoint[e.endpoint] = e
	}
	if len(f.all) > 0 && !slices.ContainsFunc(f.all, func(e *engine) bool { return e.Model != f.all[0].Model }) {
		f.onlyModel = f.all[0].Model
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	for endpoint, l := range c.loads {
		if f.byEndpoint[endpoint] == nil && l.inFlight == 0 {
			delete(c.loads, endpoint)
		}
	}
	for _, e := range f.all {
		if c.loads[e.endpoint] == nil {
			c.loads[e.endpoint] = &load{byRank: make(map[int]*rankLoad)}
		}
		e.load = c.loads[e.endpoint]
	}
	if before := c.fleet; before == nil || len(before.all) != len(f.all) || before.unusable != f.unusable {
		c.Log.Info().Int("engines", len(f.all)).Int("without_address", f.unusable).Msg("the fleet has changed")
	}
	c.fleet = f
}

// resolve looks up hosts, all at once. One with several addresses keeps the one it has: the addresses of a registered engine
// are those of one server, and jumping between them would split what is known of its load.
func (c *Chooser) resolve(ctx context.Context, hosts map[string]bool, all bool) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var mu sync.Mutex // guards the addresses meanwhile
	var lookups sync.WaitGroup
	for host := range hosts {
		mu.Lock()
		_, known := c.keeper.addresses[host]
		mu.Unlock()
		if known && !all {
			continue
		}
		lookups.Go(func() {
			found, err := c.Resolve(ctx, host)
			if err != nil || len(found) == 0 {
				c.Log.Debug().Err(err).Str("host", host).Msg("the host of an engine has no address")
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range found {
				found[i] = found[i].Unmap()
			}
			if !slices.Contains(found, c.keeper.addresses[host]) {
				c.keeper.addresses[host] = slices.MinFunc(found, netip.Addr.Compare)
			}
		})
	}
	lookups.Wait()
}

// endpointOf returns the one way in which an endpoint is written here, and any other text as it is.
func endpointOf(text string) string {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return text
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// hostOf returns host and port of a base URL. The port of the scheme counts where there is none.
func hostOf(base string) (host string, port uint16, ok bool) {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", 0, false
	}
	text := u.Port()
	if text == "" {
		text = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	at, err := netip.ParseAddrPort("127.0.0.1:" + text)
	return strings.TrimSuffix(u.Hostname(), "."), at.Port(), err == nil
}

// alive returns the engines that may be chosen now: those that have not failed of late, or all if none is left, because a
// request to an engine that is likely dead is better than none. The caller holds mu.
func (c *Chooser) alive(engines []*engine, now time.Time) []*engine {
	left := slices.DeleteFunc(slices.Clone(engines), func(e *engine) bool { return now.Before(e.until) })
	if len(left) == 0 {
		return engines
	}
	return left
}

// silenceLimit is how many requests in a row without an answer take an engine out.
const silenceLimit = 3

// failed counts a failure of an engine and leaves the engine out for a while. A request that was chosen before the engine's last
// failure does not count again. The caller holds mu.
func (c *Chooser) failed(e *engine, chosen time.Time, why string) {
	e.silent = 0
	if e.failures > 0 && !chosen.After(e.failedAt) {
		return
	}
	leave := c.LeaveFor << min(e.failures, 3)
	e.failures++
	e.failedAt = c.Now()
	e.until = e.failedAt.Add(leave)
	level := zerolog.WarnLevel
	if e.failures > 1 {
		level = zerolog.DebugLevel // it has been said
	}
	c.Log.WithLevel(level).Str("instance", e.Instance.Instance).Str("endpoint", e.endpoint).Str("why", why).Stringer("for", leave).
		Msg("the engine gets no requests for a while")
}

// probe lets one request find out whether an engine that failed lives again, and keeps others away meanwhile. The caller holds mu.
func (c *Chooser) probe(e *engine, now time.Time) {
	if e.failures > 0 {
		e.until = now.Add(c.LeaveFor)
	}
}

// noAnswer counts a request that an engine left without an answer: it may be slow, or its client impatient, so only several in a
// row count as a failure. The caller holds mu.
func (c *Chooser) noAnswer(e *engine, chosen time.Time) {
	if e.silent++; e.silent >= silenceLimit || e.failures > 0 {
		c.failed(e, chosen, "it does not answer")
	}
}

// lives forgets the failures of an engine that has answered. Requests from before its last failure tell nothing: an engine that
// shuts down answers those it has and refuses new ones. The caller holds mu.
func (c *Chooser) lives(e *engine, chosen time.Time) {
	if e.failures > 0 && !chosen.After(e.failedAt) {
		return
	}
	if e.failures > 0 {
		c.Log.Info().Str("instance", e.Instance.Instance).Str("endpoint", e.endpoint).Msg("the engine answers again")
	}
	e.failures, e.silent, e.failedAt, e.until = 0, 0, time.Time{}, time.Time{}
}
