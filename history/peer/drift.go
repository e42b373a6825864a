package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/redact"
	"example.com/conductor/spelling"
)

const (
	// digestPatience is how long a peer may take for all its digests, maxDigests how many bytes.
	digestPatience = 10 * time.Second
	maxDigests     = 256 << 20
	// resyncPause is the least time between two resyncs of a source after a difference. It doubles
	// up to maxResyncPause with each resync that ends no difference.
	resyncPause    = 10 * time.Minute
	maxResyncPause = 24 * time.Hour
	// shownDeployments is how many deployments a line of the log about a difference names.
	shownDeployments = 4
)

// Digests is how peers show what their sources hold.
type Digests struct {
	// Path is where a peer shows its digests.
	Path string
	// Read reads the hash seed of a peer and the digests of its sources.
	Read func(body io.Reader) (hashSeed uint64, all []ingest.SourceDigest, err error)
}

// Results of a comparison of one source with that of a peer.
const (
	Equal        = "equal"        // the same blocks behind the same batch
	Suspected    = "suspected"    // a difference that one more comparison has to confirm
	Different    = "different"    // a confirmed difference
	Unsettled    = "unsettled"    // blocks without a place differ, which events of other sources may give them
	Incomparable = "incomparable" // no batch in common, or another registration
)

// results has the results, the worst last.
var results = []string{Equal, Incomparable, Unsettled, Suspected, Different}

// Drift is the state of the comparisons with peers.
type Drift struct {
	Compared    time.Time      // end of the last round in which a peer answered, zero before
	Sources     map[string]int // pairs of source and peer in the last round, by result
	Blocks      int            // memberships of this server in equal and different pairs of the last round
	Differences uint64         // differences that were confirmed
	Resyncs     uint64         // resyncs that they led to
	Behind      uint64         // most batches that a peer had applied in the last round and this server not
	Peers       map[string]PeerDrift
}

// PeerDrift is the last comparison with one peer.
type PeerDrift struct {
	Compared  time.Time // zero before the first one
	Worst     string    // result of a source, "" if there is none
	Different int       // sources
	Behind    uint64    // most batches of a source that it had applied and this server not
	Error     string    // why the last try was none, "" if it was one
}

// Drift returns the state of the comparisons.
func (p *Peers) Drift() Drift {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.drift
	d.Sources, d.Peers = maps.Clone(d.Sources), maps.Clone(d.Peers)
	return d
}

// pair is a source and a peer.
type pair struct {
	peer string
	key  registration.Key
}

// comparer compares one Conductor with its peers. One goroutine uses it.
type comparer struct {
	peers   *Peers
	c       *conductor.Conductor
	suspect map[pair]uint64 // batch at which a difference was seen
	differs map[pair]bool   // confirmed, and not equal since
	late    map[pair]bool   // behind the peer in the last round
	retry   map[registration.Key]retry
	refused map[string]string // peers that are left alone, and why
}

// retry is when a source may resync again.
type retry struct {
	after time.Time
	pause time.Duration
}

// Compare compares the sources of c with those of the peers, each interval, until ctx ends. A
// difference is confirmed by a second round. Then the side whose history is not whole resyncs,
// and both if both are whole.
func (p *Peers) Compare(ctx context.Context, c *conductor.Conductor, interval time.Duration) {
	m := &comparer{
		peers: p, c: c, suspect: make(map[pair]uint64), differs: make(map[pair]bool), late: make(map[pair]bool),
		retry: make(map[registration.Key]retry), refused: make(map[string]string),
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.compareAll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// compareAll compares all sources with those of each peer once.
func (m *comparer) compareAll(ctx context.Context) {
	d := Drift{Sources: make(map[string]int), Peers: make(map[string]PeerDrift)}
	before := m.peers.Drift().Peers
	verdicts := make(map[registration.Key]string) // the worst, of sources that some peer has
	behind := make(map[registration.Key]string)   // why, of sources that some peer has; "" if they are not
	seen := make(map[pair]bool)
	for _, peer := range m.peers.Peers() {
		theirs, err := m.askDigests(ctx, peer)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errSelf) {
			m.peers.dropSelf(peer)
			continue
		}
		if m.logRefusal(peer, err); err != nil {
			p := before[peer]
			p.Error = err.Error()
			d.Peers[peer] = p
			continue
		}
		d.Compared = time.Now()
		with := PeerDrift{Compared: d.Compared}
		ours := make(map[registration.Key]*ingest.SourceDigest)
		all := m.c.Sources().Digests("")
		for i := range all {
			ours[all[i].Key()] = &all[i]
		}
		for i := range theirs {
			p, their := pair{peer, theirs[i].Key()}, &theirs[i]
			our := ours[p.key]
			if our == nil {
				continue
			}
			seen[p] = true
			n, text := m.countBehind(p, our, their)
			with.Behind = max(with.Behind, n)
			d.Behind = max(d.Behind, n)
			if text != "" || behind[p.key] == "" {
				behind[p.key] = text
			}
			result, blocks := m.judgeSource(p, our, their)
			d.Sources[result]++
			d.Blocks += blocks
			with.countResult(result)
			if result == Different || result == Equal && verdicts[p.key] == "" {
				verdicts[p.key] = result
			}
		}
		d.Peers[peer] = with
	}
	for key, verdict := range verdicts {
		if verdict == Equal {
			m.c.Sources().ReportFinding(key, doctor.FindingDrift, "")
			if t, ok := m.retry[key]; ok {
				m.retry[key] = retry{after: t.after}
			}
		}
	}
	for key, text := range behind {
		m.c.Sources().ReportFinding(key, doctor.FindingBehind, text)
	}
	maps.DeleteFunc(m.retry, func(_ registration.Key, t retry) bool { return time.Since(t.after) > t.pause })
	maps.DeleteFunc(m.suspect, func(p pair, _ uint64) bool { return !seen[p] })
	maps.DeleteFunc(m.differs, func(p pair, _ bool) bool { return !seen[p] })
	maps.DeleteFunc(m.late, func(p pair, _ bool) bool { return !seen[p] })
	m.peers.updateDrift(func(now *Drift) {
		d.Differences, d.Resyncs = now.Differences, now.Resyncs
		if d.Compared.IsZero() {
			d.Compared = now.Compared
		}
		*now = d
	})
}

// countResult counts the result of a source.
func (p *PeerDrift) countResult(result string) {
	if result == Different {
		p.Different++
	}
	if slices.Index(results, result) > slices.Index(results, p.Worst) {
		p.Worst = result
	}
}

// updateDrift changes the state of the comparisons.
func (p *Peers) updateDrift(change func(*Drift)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.drift)
}

// errForeign is why a peer has nothing to compare.
var errForeign = errors.New("it has no digests: it is another kind of server, or an older one")

// askDigests returns the digests of a peer.
func (m *comparer) askDigests(ctx context.Context, peer string) ([]ingest.SourceDigest, error) {
	ctx, cancel := context.WithTimeout(ctx, digestPatience)
	defer cancel()
	digests := m.peers.cfg.Digests
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(peer, "/")+digests.Path, nil)
	if err != nil {
		return nil, redact.Error(err)
	}
	req.Header.Set(Header, m.peers.me)
	res, err := m.peers.cfg.Client.Do(req)
	if err != nil {
		return nil, redact.Error(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed {
		return nil, errForeign
	}
	if err := answerError(res, m.peers.me); err != nil {
		return nil, err
	}
	seed, all, err := digests.Read(io.LimitReader(res.Body, maxDigests))
	if err == nil && seed != m.c.Catalog().HashSeed() {
		err = errors.New("it has another hash.seed")
	}
	return all, err
}

// logRefusal logs why a peer is left alone, once for each reason.
func (m *comparer) logRefusal(peer string, err error) {
	if err == nil {
		delete(m.refused, peer)
		return
	}
	level := zerolog.WarnLevel
	if m.peers.isStarting(err) {
		level = zerolog.InfoLevel
	}
	// After the grace the same reason is logged again, as a warning.
	if why := level.String() + err.Error(); m.refused[peer] != why {
		m.refused[peer] = why
		m.peers.cfg.Log.WithLevel(level).Str("peer", redact.URL(peer)).Err(err).Msg("a peer cannot be compared with")
	}
}

// countBehind returns how many batches a synced peer had applied that this server, which is asked later, has
// not. The text says so from the second round on.
func (m *comparer) countBehind(p pair, our, their *ingest.SourceDigest) (batches uint64, text string) {
	if their.Synced() && their.Mark != nil {
		next := uint64(0)
		if our.Mark != nil {
			next = our.Mark.Seq + 1
		}
		batches = max(their.Mark.Seq+1, next) - next
	}
	if batches > 0 && m.late[p] {
		text = fmt.Sprintf("the replica %s has applied %s more: this server does not get them, or does not keep up", redact.URL(p.peer),
			spelling.Count(batches, "batch"))
	}
	m.late[p] = batches > 0
	return batches, text
}

// judgeSource compares a source with that of a peer, and acts on a confirmed difference. It returns the
// result, and the blocks that it is about.
func (m *comparer) judgeSource(p pair, our, their *ingest.SourceDigest) (result string, blocks int) {
	a, b, fresh := common(our, their)
	switch {
	case a == nil || our.Settings != their.Settings:
		return Incomparable, 0
	case a.Blocks == b.Blocks && a.Loose != b.Loose:
		delete(m.suspect, p)
		return Unsettled, 0
	case a.Digest == b.Digest:
		delete(m.suspect, p)
		delete(m.differs, p)
		return Equal, a.Blocks
	}
	// The same checkpoint again is no news.
	if at, before := m.suspect[p]; !before || at == a.Seq && !fresh {
		m.suspect[p] = a.Seq
		if m.differs[p] {
			return Different, a.Blocks
		}
		return Suspected, 0
	}
	m.confirmDifference(p, our, their, a, b, fresh)
	return Different, a.Blocks
}

// common returns the newest checkpoints of two digests behind the same batch, nil without one.
// fresh says that both sources stand there.
func common(our, their *ingest.SourceDigest) (a, b *ingest.Checkpoint, fresh bool) {
	if a, b = our.Mark, their.Mark; a == nil || b == nil {
		return nil, nil, false
	}
	same := func(a, b *ingest.Checkpoint) bool { return a.Seq == b.Seq && a.Print == b.Print }
	if same(a, b) {
		return a, b, true
	}
	theirs := append(slices.Clip(their.Checkpoints), *b)
	for _, x := range slices.Backward(append(slices.Clip(our.Checkpoints), *a)) {
		for i := range theirs {
			if same(&x, &theirs[i]) {
				return &x, &theirs[i], false
			}
		}
	}
	return nil, nil, false
}

// confirmDifference reports a difference and resyncs the source if it is for this side to do.
func (m *comparer) confirmDifference(p pair, our, their *ingest.SourceDigest, a, b *ingest.Checkpoint, fresh bool) {
	known, now := m.differs[p], time.Now()
	m.differs[p] = true
	resync := m.mayResync(our, their, now)
	m.peers.updateDrift(func(d *Drift) {
		if !known {
			d.Differences++
		}
		if resync {
			d.Resyncs++
		}
	})
	if known && !resync {
		return
	}
	m.c.Sources().ReportFinding(p.key, doctor.FindingDrift,
		fmt.Sprintf("behind batch %d this server holds %s and the replica %s %d: one side lost events, or applied them in another way",
			a.Seq, spelling.Count(a.Blocks, "block"), redact.URL(p.peer), b.Blocks))
	line := m.peers.cfg.Log.Warn().Str("source", p.key.String()).Str("peer", redact.URL(p.peer)).Uint64("seq", a.Seq).
		Int("blocks", a.Blocks).Int("blocks_there", b.Blocks).
		Str("digest", fmt.Sprintf("%016x", a.Sum)).Str("digest_there", fmt.Sprintf("%016x", b.Sum)).
		Str("missing", our.Missing).Str("missing_there", their.Missing)
	if fresh {
		line = line.Strs("deployments", describeDeployments(our, their))
	}
	line.Bool("resync", resync).Msg("a replica holds other blocks of a source behind the same batch")
	if resync {
		delete(m.suspect, p)
		m.c.Sources().Resync(p.key, ingest.ReasonDrift)
	}
}

// mayResync reports whether a source with a difference is to resync now, and notes that it does.
func (m *comparer) mayResync(our, their *ingest.SourceDigest, now time.Time) bool {
	if our.ReplayEndpoint == "" || !our.CanRestore() || our.Missing == "" && their.Missing != "" {
		return false // nothing would come back; or the other side knows that it lacks something
	}
	key := our.Key()
	was := m.retry[key]
	if now.Before(was.after) {
		return false
	}
	pause := min(max(2*was.pause, resyncPause), maxResyncPause)
	m.retry[key] = retry{now.Add(pause), pause}
	return true
}

// describeDeployments names some deployments in which two digests of a source differ.
func describeDeployments(our, their *ingest.SourceDigest) (out []string) {
	type both struct{ here, there ingest.Digest }
	all := make(map[ingest.DeploymentDigest]*both)
	var order []ingest.DeploymentDigest
	at := func(c ingest.DeploymentDigest) *both {
		c.Digest = ingest.Digest{}
		if all[c] == nil {
			all[c] = new(both)
			order = append(order, c)
		}
		return all[c]
	}
	for _, c := range our.Deployments {
		at(c).here = c.Digest
	}
	for _, c := range their.Deployments {
		at(c).there = c.Digest
	}
	for _, c := range order {
		if d := all[c]; d.here != d.there && len(out) < shownDeployments {
			out = append(out, fmt.Sprintf("tenant %q, model %q, block size %d: %d blocks here, %d there, digests %016x and %016x",
				c.Tenant, c.Model, c.BlockSize, d.here.Blocks, d.there.Blocks, d.here.Sum, d.there.Sum))
		}
	}
	return out
}
