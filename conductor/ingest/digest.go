package ingest

import (
	"fmt"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
)

// A replica cannot ask another at the same batch: busy sources move on. So each source notes
// its digest behind every batch whose number is divisible by checkpointEvery, and keeps the last
// checkpoints of them. Two replicas that are less than a thousand batches apart have some in
// common.
const (
	checkpointEvery = 64
	checkpoints     = 16
)

// Digest summarises held blocks.
type Digest = index.Digest

// ReasonDrift is the reason of a resync after a comparison with another replica.
const ReasonDrift = "drift"

// Checkpoint is the digest of all that a source held behind one batch.
type Checkpoint struct {
	Seq   uint64
	Print uint64 // of the batch, see stream.Step
	Digest
}

// SourceDigest is what a source holds, for a comparison with the same source of another
// replica. Blocks that expire are left out, since each replica has its own clock. So are blocks
// that a peer gave without a mark.
type SourceDigest struct {
	registration.Registration
	// Settings is a fingerprint of all that decides what the source's events do.
	Settings uint64
	State    string
	Reason   string
	Epoch    uint64
	// Mark is the batch applied last, nil before the first; Missing is why the history up to
	// it is not whole, "" if it is.
	Mark        *Checkpoint
	Missing     string
	Checkpoints []Checkpoint       // ascending
	Deployments []DeploymentDigest // ordered
	// ForeignReplay says that the replay service is another publisher's, see stream.Status. Peers do not tell it.
	ForeignReplay bool
}

// DeploymentDigest is what a source holds in one deployment.
type DeploymentDigest struct {
	scope.Shard
	BlockSize int // tokens
	Digest
}

// Synced reports whether everything up to the mark is applied and more of it comes.
func (d *SourceDigest) Synced() bool { return d.State == string(stream.Synced) }

// CanRestore reports whether a resync brings back what it drops.
func (d *SourceDigest) CanRestore() bool { return canRestore(&d.Registration, d.ForeignReplay) }

// Digests returns the digests of all sources, or of the source whose key has the text only,
// sorted by key. It takes the turn of one source after another.
func (c *Sources) Digests(only string) []SourceDigest {
	all := []SourceDigest{}
	for _, s := range c.All() {
		if only == "" || s.Registration.Key().String() == only {
			all = append(all, sourceDigest(s))
		}
	}
	return all
}

// Resync drops what a source holds and lets it replay, or take a snapshot of its engine. It
// reports whether there is one that can.
func (c *Sources) Resync(key registration.Key, reason string) bool {
	s := c.Find(key)
	if s == nil || !canRestore(s.Registration, s.feed.Status().ForeignReplay) {
		return false
	}
	s.feed.Resync(reason)
	return true
}

// canRestore reports whether the publisher can bring back what was dropped. A replay service of another publisher (foreign) brings
// nothing.
func canRestore(reg *registration.Registration, foreign bool) bool {
	return reg.CanRestore() && (reg.SnapshotEndpoint != "" || !foreign)
}

// ReportFinding adds a finding to a source, if it is there, or withdraws it if text is empty.
func (c *Sources) ReportFinding(key registration.Key, code, text string) {
	switch s := c.Find(key); {
	case s == nil:
	case text == "":
		s.doctor.Findings.Withdraw(code)
	default:
		s.doctor.Findings.Report(code, "%s", text)
		s.logFindings()
	}
}

// Health returns the state of a source and how often its publisher was restarted. It returns
// false if there is no such source.
func (c *Sources) Health(key registration.Key) (state stream.State, restarts uint64, ok bool) {
	if s := c.Find(key); s != nil && !s.recovered {
		st := s.feed.Status()
		return st.State, st.Restarts, true
	}
	return "", 0, false
}

// sourceDigest returns the digest of the source.
func sourceDigest(s *Source) SourceDigest {
	s.turn.Lock()
	defer s.turn.Unlock()
	st := s.feed.Status()
	d := SourceDigest{
		Registration: *s.Registration, Settings: settingsPrint(s), State: string(st.State), Reason: st.Reason, Epoch: st.Epoch,
		ForeignReplay: st.ForeignReplay,
		Checkpoints:   slices.Clone(s.checkpoints), Deployments: make([]DeploymentDigest, 0, len(s.holdings.namespaces)),
	}
	if m := s.verifiedMark(); m != nil {
		d.Mark, d.Missing = &Checkpoint{m.Seq, m.Print, s.holdings.digest.Load()}, m.Missing
	}
	namespaces := slices.Clone(s.holdings.namespaces)
	slices.SortFunc(namespaces, func(a, b *namespace) int { return a.Deployment.Key.Compare(b.Deployment.Key) })
	for _, ns := range namespaces {
		dk := ns.Deployment.Key
		d.Deployments = append(d.Deployments, DeploymentDigest{scope.Shard{Tenant: dk.Tenant, Model: dk.Model}, dk.BlockSize,
			s.holdings.digestIn(ns)})
	}
	return d
}

// digestIn returns the digest of a namespace. turn is held.
func (s *holdings) digestIn(ns *namespace) (sum Digest) {
	for key, h := range ns.owners {
		if s.digests(key.Medium) {
			d := ns.Deployment.Index.Digest(h.owners[0])
			sum.Blocks += d.Blocks
			sum.Loose += d.Loose
			sum.Sum += weightOf(ns.Deployment.Key, key) * d.Sum
		}
	}
	return sum
}

// checkDigest reports a digest of the source that is not the sum of its deployments' digests. The
// turns of all sources are held.
func checkDigest(s *Source) error {
	var sum Digest
	for _, ns := range s.holdings.namespaces {
		d := s.holdings.digestIn(ns)
		sum = Digest{Blocks: sum.Blocks + d.Blocks, Loose: sum.Loose + d.Loose, Sum: sum.Sum + d.Sum}
	}
	if have := s.holdings.digest.Load(); sum != have {
		return fmt.Errorf("source %s has the digest %+v, its deployments %+v", s.Registration.Key(), have, sum)
	}
	return nil
}

// digests reports whether the digest has the blocks on a medium: those that do not expire.
func (s *holdings) digests(medium string) bool { return s.reg.TTLOn(medium) == 0 }

// countIn makes the blocks of an owner a part of the digest, if they belong there. turn is held.
func (s *holdings) countIn(ns *namespace, key normalize.Owner, o index.Owner) {
	to := s.digest
	if !s.digests(key.Medium) {
		to = nil
	}
	ns.Deployment.Index.JoinDigest(to, o, weightOf(ns.Deployment.Key, key))
}

// weightOf tells the holders of a source apart in its digest. Every replica computes the same.
// A peer does not tell which blocks of a pool are those of objects.
func weightOf(at scope.Deployment, key normalize.Owner) uint64 {
	return catalog.Fingerprint(at.Tenant, at.Model, at.BlockSize, key.Rank, key.Medium, key.Group, key.Backend, key.Owned) | 1
}

// settingsPrint returns a fingerprint of what decides what the source's events do. Replicas may
// reach the publisher's replays in different ways.
func settingsPrint(s *Source) uint64 {
	reg := *s.Registration
	reg.ReplayEndpoint, reg.SnapshotEndpoint = "", ""
	values := []any{int(s.holdings.policy)}
	for _, f := range reg.Fields() {
		values = append(values, f.Name, f.Value)
	}
	return catalog.Fingerprint(values...)
}

// noteCheckpoint notes the digest behind the batch applied last. turn is held.
func (s *Source) noteCheckpoint() {
	if s.mark.Seq%checkpointEvery != 0 {
		return
	}
	if len(s.checkpoints) == checkpoints {
		copy(s.checkpoints, s.checkpoints[1:])
		s.checkpoints = s.checkpoints[:checkpoints-1]
	}
	s.checkpoints = append(s.checkpoints, Checkpoint{s.mark.Seq, s.mark.Print, s.holdings.digest.Load()})
}

// ReportLearned adds the finding that settings of a source came from its engine, or withdraws it if text is empty.
func (c *Sources) ReportLearned(key registration.Key, text string) {
	c.ReportFinding(key, doctor.FindingLearned, text)
}
