package pick

import (
	"net/http"
	"slices"
	"time"
)

// flight is a request on its way.
type flight struct {
	c       *Chooser
	choice  Choice
	targets []*target // of choice.Endpoints
	began   time.Time
	size    int  // tokens of the prompts
	single  bool // one prompt, whose tokens are known
	// known says that Conductor answered, and reusable is how many tokens an engine takes from its cache if it has all.
	known    bool
	reusable int

	// Guarded by Chooser.mu.
	at        *target // where it is
	computing *target // who computes its prompts: another one than at if prefill and decode are apart
	charged   float64 // what is queued at computing because of it, in tokens
	reported  []*report
	answered  bool
	refused   bool // the answer is an error
	started   bool // it has a first token
	ended     bool
}

// Choice implements Flight.
func (f *flight) Choice() *Choice { return &f.choice }

// charge adds the request to what a target has to compute, in place of where it was. The caller holds mu.
func (f *flight) charge(to *target) {
	f.discharge()
	f.computing, f.charged = to, to.compute
	to.load.rank(to.rank).queued += f.charged
}

// discharge takes the request from what computing has to compute. The caller holds mu.
func (f *flight) discharge() {
	if f.charged > 0 {
		r := f.computing.load.rank(f.computing.rank)
		r.queued = max(0, r.queued-f.charged)
	}
	f.charged = 0
}

// silentAfter is how long a client has to wait for an answer before it leaves, so that its leaving counts against the engine. A 504
// counts as such a client.
const silentAfter = 10 * time.Second

// Answered implements Flight. It decides whose fault an answer is:
//
//   - another endpoint than the best one answers: the data plane could not use those that come before it;
//   - 502 and 503: the engine, or the data plane in place of an engine that takes no connection;
//   - 504: maybe the engine, maybe an impatient client, so it counts as no answer;
//   - anything else, also 500, is an answer of an engine that lives, because a request can provoke a 500.
func (f *flight) Answered(endpoint string, status int) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	f.answered, f.refused = true, status >= 400
	if endpoint = endpointOf(endpoint); endpoint != "" && endpoint != f.at.endpoint && !f.move(endpoint) {
		return
	}
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		for _, e := range f.suspects() {
			c.failed(e, f.began, "it answers "+http.StatusText(status))
		}
	case http.StatusGatewayTimeout:
		for _, e := range f.suspects() {
			c.noAnswer(e, f.began)
		}
	default:
		c.lives(f.at.engine, f.began)
		if !f.refused {
			c.lives(f.computing.engine, f.began)
		}
	}
	if f.refused {
		f.discharge() // the engine computes nothing
		f.takeBack()
	}
}

// suspects returns the engines that a failure counts against. If two work on a request, nobody says which of them failed, so it is
// the one that has failed before, or else both: their next requests go through different pairs and tell. The caller holds mu.
func (f *flight) suspects() []*engine {
	if f.computing == f.at {
		return []*engine{f.at.engine}
	}
	both := []*engine{f.at.engine, f.computing.engine}
	if f.at.failures > 0 != (f.computing.failures > 0) {
		return slices.DeleteFunc(both, func(e *engine) bool { return e.failures == 0 })
	}
	return both
}

// move follows a request to the endpoint that the data plane has sent it to. It reports false if that is not the one of an engine that is
// known: nothing is counted there, and nothing that it answers counts against the engine that was chosen. The caller holds mu.
func (f *flight) move(endpoint string) bool {
	c := f.c
	var to *target
	if i := slices.IndexFunc(f.targets, func(t *target) bool { return t.endpoint == endpoint }); i >= 0 {
		for _, t := range f.targets[:i] {
			c.failed(t.engine, f.began, "the data plane went on to "+endpoint)
		}
		to = f.targets[i]
	} else {
		e := c.fleet.byEndpoint[endpoint]
		if e == nil {
			f.discharge()
			f.takeBack()
			f.known = false // of what that engine has
			return false
		}
		to = &target{engine: e, rank: f.at.rank, uncertain: true, compute: float64(f.size)}
	}
	f.at.inFlight--
	to.inFlight++
	apart := f.computing != f.at
	f.at = to
	if apart {
		return true // the same engine computes the prompt
	}
	f.charge(to)
	// The same names with another target: the reports move there. Those that have not been sent need not be.
	moved := make([]*report, 0, len(f.reported))
	for _, r := range f.reported {
		n := &report{Routed: r.Routed, context: r.context}
		n.Target, n.Rank = to.Instance.Instance, to.rank
		n.replaces = !c.reporter.withdraw(r) || r.replaces
		r.dropped = true
		if c.reporter.add(n) {
			c.remember(n)
			moved = append(moved, n)
		} else if n.replaces {
			c.reporter.takeBack(r)
		}
	}
	f.reported = moved
	return true
}

// takeBack takes the reports back. The caller holds mu.
func (f *flight) takeBack() {
	for _, r := range f.reported {
		r.dropped = true
		f.c.reporter.takeBack(r)
	}
	f.reported = nil
}

// FirstToken implements Flight.
func (f *flight) FirstToken() {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	f.start()
	for _, r := range f.reported {
		r.computed = c.Now()
		c.remember(r)
	}
	f.reported = nil // with their prompts, because an answer may stream for minutes
	if !f.refused {
		c.metrics.firstToken.Observe(c.Now().Sub(f.began).Seconds())
	}
}

// start ends what the prompts add to the load. The caller holds mu.
func (f *flight) start() {
	f.discharge()
	if !f.started {
		f.started = true
		f.at.started++
		if f.computing != f.at {
			f.computing.inFlight--
		}
		if !f.refused {
			f.computing.load.finish(f.reported, f.c.Now())
		}
	}
}

// Usage implements Flight.
func (f *flight) Usage(prompt, cached int) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if prompt < 0 || cached > prompt || cached < 0 || !f.known {
		return
	}
	predicted := min(f.at.row.Expected, f.reusable)
	c.metrics.served.WithLabelValues("prompt").Add(float64(prompt))
	c.metrics.served.WithLabelValues("predicted").Add(float64(predicted))
	c.metrics.served.WithLabelValues("cached").Add(float64(cached))
	if f.single && prompt != f.size {
		c.metrics.mismatches.Inc() // the tokenizer makes other tokens than the engine, which then finds less
		return
	}
	// Expected tokens were a hope, and some rows are bounds: only what Conductor was certain of is to be judged.
	if f.single && f.at == f.computing && !f.at.uncertain && f.at.row.Expected == f.at.row.Disk && !c.NoFeedback {
		c.reporter.addFeedback(feedback{f.at.Instance.Instance, predicted, cached})
	}
}

// End implements Flight.
func (f *flight) End() {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	if !f.answered && c.Now().Sub(f.began) >= silentAfter {
		for _, e := range f.suspects() { // sooner, a client that leaves tells nothing of them
			c.noAnswer(e, f.began)
		}
	}
	f.discharge()
	if !f.started {
		if f.computing != f.at {
			f.computing.inFlight--
		}
		f.takeBack() // the client left, or the engine died, before the prompt was computed for all we know
	} else {
		f.at.started--
	}
	f.at.inFlight--
}
