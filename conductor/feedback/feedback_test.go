package feedback

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// bench is a table about sources that are registered at once, with a clock and a record of resyncs.
type bench struct {
	*Table
	catalog *catalog.Catalog
	now     time.Time
	resyncs []registration.Key
}

func newBench() *bench {
	b := &bench{now: time.Unix(1_790_000_000, 0)}
	log, clock := zerolog.Nop(), func() time.Time { return b.now }
	b.catalog = catalog.New(catalog.Options{ExpectedBytes: 1 << 20, Now: clock, Log: log})
	b.Table = New(Options{Catalog: b.catalog, Now: clock, Log: &log, Resync: func(key registration.Key, _ string) bool {
		b.resyncs = append(b.resyncs, key)
		return true
	}})
	return b
}

// register returns the source of a new instance.
func (b *bench) register(instance string) *catalog.Member {
	r := registration.Registration{Type: registration.TypeVLLM, Instance: instance, Tenant: "t", Model: "m", BlockSize: 16}
	d := doctor.New(doctor.Registered{}, b.opts.Now)
	m := catalog.NewMember(r, &d.Findings, func() stream.Status { return stream.Status{} })
	b.catalog.Join(m)
	return m
}

// report adds a report of 100 promised tokens n times, and returns what came of the last.
func (b *bench) report(t *testing.T, m *catalog.Member, medium string, cached, n int) (res Result) {
	t.Helper()
	for range n {
		var err error
		res, err = b.Add(&Report{Tenant: "t", Instance: m.Registration.Instance, Medium: medium, Matched: 100, Cached: cached},
			[]*catalog.Member{m})
		must.Succeed(t, err)
	}
	return res
}

// TestMediaAreBounded holds that clients cannot make an instance take any number of media.
func TestMediaAreBounded(t *testing.T) {
	b := newBench()
	m := b.register("A")
	for i := range maxMedia {
		b.report(t, m, fmt.Sprint(i), 100, 1)
	}
	_, err := b.Add(&Report{Tenant: "t", Instance: "A", Medium: "one more"}, []*catalog.Member{m})
	var fault *invalid.FieldError
	if !errors.As(err, &fault) || fault.Field != "medium" || len(b.Totals()) != maxMedia {
		t.Errorf("%v, %d media", err, len(b.Totals()))
	}
	b.report(t, m, "0", 100, 1)
}

// TestFindingStaysWhileAMediumIsWrong holds that a medium whose reports agree does not hide another one whose do not, and
// that nothing happens without a bound.
func TestFindingStaysWhileAMediumIsWrong(t *testing.T) {
	b := newBench()
	m := b.register("A")
	if res := b.report(t, m, "GPU", 0, 30); res.Resynced || len(b.resyncs) != 0 {
		t.Errorf("without a bound: %+v", res)
	}
	b.Tune(0.2, 0)
	if res := b.report(t, m, "GPU", 0, 1); !res.Resynced || len(b.resyncs) != 1 || b.resyncs[0] != m.Key() {
		t.Errorf("%+v, resyncs %v", res, b.resyncs)
	}
	b.now = b.now.Add(resyncPause)
	b.report(t, m, "GPU", 0, enoughReports-1) // the resync forgot what was before
	if n := len(b.resyncs); n != 1 {
		t.Errorf("%d reports after a resync begin %d others", enoughReports-1, n-1)
	}
	b.report(t, m, "CPU", 100, 30)
	if n := len(m.Findings.Unlogged()); n != 0 {
		t.Errorf("%d findings that nobody logged", n)
	}
	if all := m.Findings.List(); len(all) != 1 || all[0].Code != doctor.FindingFeedback {
		t.Errorf("a medium that agrees withdrew the finding of another: %v", all)
	}
	b.report(t, m, "GPU", 100, 60)
	if all := m.Findings.List(); len(all) != 0 {
		t.Errorf("after reports that agree: %v", all)
	}
}

// TestAnotherBoundJudgesAnew: a medium that was wrong by a former bound keeps no finding.
func TestAnotherBoundJudgesAnew(t *testing.T) {
	b := newBench()
	m := b.register("A")
	b.Tune(0.2, 0)
	b.report(t, m, "GPU", 70, 30)
	if len(m.Findings.List()) != 1 {
		t.Fatal("an error of 30 % is no finding")
	}
	b.Tune(0.5, 0)
	b.report(t, m, "CPU", 100, enoughReports)
	if all := m.Findings.List(); len(all) != 0 {
		t.Errorf("with a larger bound: %v", all)
	}
}

// TestDropsAreFound holds that an engine which lacks the last block of each hit gets a finding that names the field, that evicted
// blocks do not hide it, and that one report which lacks nothing ends it.
func TestDropsAreFound(t *testing.T) {
	b := newBench()
	m := b.register("A")
	has := func(want bool) {
		t.Helper()
		all := m.Findings.List()
		got := len(all) == 1 && all[0].Code == doctor.FindingDrops && strings.Contains(all[0].Message, "drafter: drops_last_block")
		if got != want {
			t.Errorf("the findings are %v, want that of the drafter: %v", all, want)
		}
	}
	b.report(t, m, "GPU", 100-16, enoughReports-1)
	has(false)
	b.report(t, m, "GPU", 100-64, 4) // four blocks were evicted
	b.report(t, m, "CPU", 100, 1)    // the drafter has a part in the device alone
	has(false)
	b.report(t, m, "", 100-16, 1)
	has(true)
	b.report(t, m, "GPU", 100, 1)
	has(false)
	b.report(t, m, "GPU", 100-16, enoughReports-1)
	b.report(t, m, "GPU", 100-32, enoughReports)
	b.report(t, m, "GPU", 100-16, enoughReports)
	has(false)
}

// TestRegisteredDrafterIsNotFound holds that a source whose drafter is registered gets no finding that says so.
func TestRegisteredDrafterIsNotFound(t *testing.T) {
	b := newBench()
	m := b.register("A")
	m.Registration.Drafter = registration.DrafterDrops
	b.report(t, m, "GPU", 100-16, 2*enoughReports)
	if all := m.Findings.List(); len(all) != 0 {
		t.Errorf("the findings are %v", all)
	}
}
