package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/status"
	"example.com/conductor/internal/must"
)

// expectations prints what became of reports, in blocks.
func (b *bench) expectations(reader conductor.Reader) string {
	var out []string
	var last *status.Expectations
	for _, s := range b.conductor.For(reader).Services() {
		e := s.Expected
		if e == nil || e == last { // all ranks of an instance have the same
			continue
		}
		last = e
		share, known := e.Share()
		out = append(out, fmt.Sprintf("%s/%s: %d prompts, %d = %d confirmed + %d expired + %d taken back + %d dropped + %d pending, "+
			"share %v %v",
			e.Tenant, e.Instance, e.Prompts, e.Expected/16, e.Confirmed/16, e.Expired/16, e.TakenBack/16, e.Dropped/16, e.Pending/16, share,
			known))
	}
	return strings.Join(out, "\n")
}

// TestExpectations adds up the ranks of an instance and the reports without a rank, as long as it is registered. Sums of
// the fleet stay.
func TestExpectations(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		check := func(want string) {
			t.Helper()
			if got := b.expectations(conductor.Reader{}); got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
		}
		b.run("register A")
		b.run("register A rank=1")
		b.run("register B tenant=other")
		check("")
		must.Succeed(t, b.routed("a/b/c/d", "A", 0, time.Second, ""))
		must.Succeed(t, b.routed("x/y", "A", 1, time.Minute, "id"))
		must.Succeed(t, b.routed("u/v", "A", match.AnyRank, time.Minute, ""))
		time.Sleep(200 * time.Millisecond)
		b.run("store A path=a/b/c")
		check("default/A: 3 prompts, 8 = 3 confirmed + 0 expired + 0 taken back + 0 dropped + 5 pending, share 1 true")
		time.Sleep(2 * time.Second)
		check("default/A: 3 prompts, 8 = 3 confirmed + 1 expired + 0 taken back + 0 dropped + 4 pending, share 0.75 true")
		must.Succeed(t, b.view().TakeBack("", "id"))
		b.run("clear A rank=1")
		check("default/A: 3 prompts, 8 = 3 confirmed + 1 expired + 2 taken back + 2 dropped + 0 pending, share 0.75 true")
		if got := b.expectations(operatorOf("other")); got != "" {
			t.Errorf("another tenant sees %s", got)
		}
		e := b.view().Services()[0].Expected
		if e.Delay[0] < 200*time.Millisecond || e.Delay[2] > 250*time.Millisecond || e.TTL != 10*time.Second {
			t.Errorf("%+v", e)
		}
		b.run("unregister A rank=1")
		check("default/A: 3 prompts, 8 = 3 confirmed + 1 expired + 2 taken back + 2 dropped + 0 pending, share 0.75 true")
		b.run("unregister A")
		check("")
		all := expectedSeries(t, b.conductor)
		for result, want := range map[string]float64{"confirmed": 3, "expired": 1, "taken_back": 2, "dropped": 2, "evicted": 0} {
			if got := value(all["conductor_expected_tokens_total"], "result="+result); got != 16*want {
				t.Errorf("%s: %v tokens", result, got)
			}
		}
		b.run("register A")
		must.Succeed(t, b.routed("new", "A", 0, 0, ""))
		check("default/A: 1 prompts, 1 = 0 confirmed + 0 expired + 0 taken back + 0 dropped + 1 pending, share 0 false")
	})
}

// expectedSeries gathers the metrics of reports by name.
func expectedSeries(t testing.TB, c *conductor.Conductor) map[string][]*dto.Metric {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c.Meter().ExpectedCollector())
	families, err := r.Gather()
	must.Succeed(t, err)
	all := make(map[string][]*dto.Metric)
	for _, f := range families {
		all[f.GetName()] = f.Metric
	}
	return all
}

// TestExpectedSeries holds which instances have series, and that a smaller bound takes effect at once.
func TestExpectedSeries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		tune := conductor.Tunables{MaxSources: 1000, ExpectedBytes: 1 << 20}
		b.conductor.Tune(tune)
		const n = 510
		for i := range n {
			name := fmt.Sprintf("E%03d", i)
			b.run("register " + name)
			must.Succeed(t, b.routed("a/b", name, 0, time.Second, ""))
			if i < n-5 {
				b.run("store " + name + " path=a/b")
			}
		}
		must.Succeed(t, b.routed("c", "E000", 0, time.Minute, ""))
		time.Sleep(2 * time.Second)
		all := expectedSeries(t, b.conductor)
		if got := len(all["conductor_instance_expected_prompts_total"]); got != 500 {
			t.Errorf("%d instances have series", got)
		}
		for _, labels := range [][]string{{"instance_id=E509", "result=expired"}, {"instance_id=E000", "result=confirmed"}} {
			if got := value(all["conductor_instance_expected_tokens_total"], labels...); got != 32 {
				t.Errorf("%v: %v tokens", labels, got)
			}
		}
		if got := value(all["conductor_expected_prompts_total"]); got != n+1 {
			t.Errorf("%v prompts", got)
		}
		var delay *dto.Summary
		for _, m := range all["conductor_instance_expected_delay_seconds"] {
			if m.Label[0].GetValue() == "E000" {
				delay = m.Summary
			}
		}
		if delay.GetSampleCount() != 2 || len(delay.GetQuantile()) != 3 {
			t.Errorf("delay %v", delay)
		}
		if bytes, pending := value(all["conductor_expected_bytes"]), value(all["conductor_expected_pending_tokens"]); bytes == 0 ||
			pending != 16 {
			t.Errorf("%v bytes, %v tokens pending", bytes, pending)
		}
		tune.SourceSeries, tune.ExpectedBytes = status.SeriesAlways, 1
		b.conductor.Tune(tune)
		all = expectedSeries(t, b.conductor)
		if got := len(all["conductor_instance_expected_prompts_total"]); got != n {
			t.Errorf("always: %d instances have series", got)
		}
		if bytes, limit := value(all["conductor_expected_bytes"]), value(all["conductor_expected_bytes_limit"]); bytes != 0 || limit != 1 {
			t.Errorf("%v of %v bytes", bytes, limit)
		}
		if got := value(all["conductor_expected_tokens_total"], "result=dropped"); got != 16 {
			t.Errorf("%v tokens dropped", got)
		}
	})
}

// unconfirmed returns the text of the finding of each source that has it.
func (b *bench) unconfirmed() string {
	var out []string
	for _, s := range b.conductor.Services() {
		for _, f := range s.Findings {
			if f.Code == doctor.FindingUnconfirmed {
				out = append(out, fmt.Sprintf("%s/%d: %s", s.Instance, s.Rank, f.Message))
			}
		}
	}
	return strings.Join(out, "\n")
}

// TestUnconfirmed finds that reports never come true, says why as far as the engine's other events show it, and takes that
// back with the first block that comes.
func TestUnconfirmed(t *testing.T) {
	type story struct {
		name  string
		rank  int // that the router names
		salt  string
		store string // what the engine announces of each prompt, %d is its number
		late  time.Duration
		want  string // the beginning of each line
	}
	const none = "none of the last 25 prompts that routers reported for "
	for _, s := range []story{
		{name: "announced", store: "store A path=p%d/q"},
		{name: "announced by a rank", rank: match.AnyRank, store: "store A rank=1 path=p%d/q"},
		{name: "nothing", want: "A/0: " + none + "rank 0 was announced in time: the engine has announced nothing since"},
		{name: "nothing without a rank", rank: match.AnyRank,
			want: "A/0: " + none + "the instance without a rank was announced in time: the engine has announced nothing since\nA/1: " +
				none + "the instance without a rank was announced in time: the engine has announced nothing since"},
		{name: "another rank", store: "store A rank=1 path=p%d/q", want: "A/0: " + none +
			"rank 0 was announced in time: rank 1 announces their blocks; report the rank"},
		{name: "another salt", salt: "s", store: "store A path=p%d/q", want: "A/0: " + none +
			"rank 0 was announced in time: the engine announces blocks, none of late under the adapter and salt"},
		{name: "other tokens", store: "store A path=system/p%d/q", want: "A/0: " + none +
			"rank 0 was announced in time: the engine announces other blocks under the same adapter and salt"},
		{name: "late", store: "store A path=p%d/q", late: 2 * time.Second, want: "A/0: " + none +
			"rank 0 was announced in time: their blocks come after the ttl"},
	} {
		t.Run(s.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.run("register A")
				b.run("register A rank=1")
				report := func(path string) {
					r := match.Routed{Query: match.Query{Model: "m", BlockSize: 16, Salt: s.salt, Tokens: promptOf(path, 16)},
						Target: "A", Rank: s.rank, TTL: time.Second}
					_, err := b.view().Routed(&r)
					must.Succeed(t, err)
				}
				for i := range 25 {
					report(fmt.Sprintf("p%d/q", i))
					time.Sleep(s.late)
					if s.store != "" {
						b.run(fmt.Sprintf(s.store, i))
					}
					time.Sleep(time.Second)
				}
				time.Sleep(2 * time.Minute) // the doctor looks every 75 s
				synctest.Wait()
				got, want := strings.Split(b.unconfirmed(), "\n"), strings.Split(s.want, "\n")
				if len(got) != len(want) {
					t.Fatalf("%q, want %q", got, want)
				}
				for i := range got {
					if !strings.HasPrefix(got[i], want[i]) || want[i] == "" && got[i] != "" {
						t.Errorf("%q, want %q", got[i], want[i])
					}
				}
				if s.want == "" {
					return
				}
				report("z")
				salt := ""
				if s.salt != "" {
					salt = " salt=" + s.salt
				}
				b.run("store A path=z" + salt)
				if got := b.unconfirmed(); got != "" {
					t.Errorf("after a confirmation: %s", got)
				}
			})
		})
	}
	t.Run("no more reports", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			b.run("register A")
			for i := range 25 {
				must.Succeed(t, b.routed(fmt.Sprint(i), "A", 0, time.Second, ""))
			}
			time.Sleep(2 * time.Minute)
			if b.unconfirmed() == "" {
				t.Error("no finding")
			}
			time.Sleep(10 * time.Minute)
			if got := b.unconfirmed(); got != "" {
				t.Errorf("there are no more reports: %s", got)
			}
		})
	})
}
