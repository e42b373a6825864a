package membership

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// TestRegistryRefusesLikeClients takes over what this replica allows clients.
func TestRegistryRefusesLikeClients(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a := newPeer(t, url, "a")
	b := newPeer(t, url, "b", func(o *conductor.Options) {
		o.Reaches = func(endpoint string) error {
			if strings.Contains(endpoint, "169.254") {
				return fmt.Errorf("is not allowed")
			}
			return nil
		}
	})
	b.conductor.Tune(conductor.Tunables{MaxSources: 3, MaxTenantSources: 2})
	bad, blue, wide := source("bad", "m"), source("blue", "m"), source("wide", "m")
	bad.Endpoint = "tcp://169.254.1.1:1"
	blue.Tenant = "blue"
	wide.MayAnnounce = []string{"red"}
	a.register(bad)
	a.register(blue)
	a.configure(wide)
	a.register(source("one", "m"))
	a.register(source("two", "m"))
	beat(a, b)
	holds(t, "blue:m one:m two:m", b)
	if b.registry.refused[reasonRefused] != 2 {
		t.Errorf("%v refused: %s", b.registry.refused, b.log.String())
	}
	a.register(source("three", "m"))
	beat(a, b)
	holds(t, "blue:m one:m two:m", b)
	a.unregister("one")
	beat(a, b)
	b.later()
	beat(b)
	holds(t, "blue:m three:m two:m", b) // there is room now
}

// TestRegistryIgnoresGarbage of the hash, entry by entry.
func TestRegistryIgnoresGarbage(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a := newPeer(t, url, "a")
	a.register(source("x", "m"))
	beat(a)
	client, key := a.members.Store().Client(), a.members.Store().Key
	good := `{"at":5,"source":{"instance_id":"%s","modelname":"m","type":"vLLM","block_size":16,"endpoint":"tcp://127.0.0.1:1"}}`
	for field, value := range map[string]string{
		`["good","default",0]`:       fmt.Sprintf(good, "good"),
		`["other","default",0]`:      fmt.Sprintf(good, "good"),
		`["good", "default", 0]`:     fmt.Sprintf(good, "good"),
		`nonsense`:                   fmt.Sprintf(good, "good"),
		`["a","default",0]`:          `{"at":5}`,
		`["b","default",0]`:          `{"at":"x","gone":true}`,
		`["c","default",0]`:          `{"at":99999999999999999,"gone":true}`,
		`["d","default",0]`:          `{"at":-1,"gone":true}`,
		`["e","default",0]`:          `[`,
		`["f","default",0]`:          fmt.Sprintf(strings.Replace(good, "16", "-16", 1), "f"),
		`["h","default",0]`:          fmt.Sprintf(strings.Replace(good, "vLLM", "other", 1), "h"),
		`["i","default",0]`:          `{"at":5,"gone":true}` + strings.Repeat(" ", maxRecord),
		`["j","default",-1,"asked"]`: `{"at":5,"discover":"file:///etc/passwd","source":{"instance_id":"j","block_size":0,"dp_rank":0}}`,
	} {
		must.Succeed(t, client.HSet(t.Context(), key("sources"), field, value).Err())
	}
	must.Succeed(t, client.Incr(t.Context(), key("revision")).Err())
	beat(a)
	holds(t, "good:m x:m", a)
	beat(a)
	if got := fmt.Sprint(a.registry.refused); got != "map[name:2 refused:3 size:1 syntax:5 time:1]" {
		t.Errorf("%s: %s", got, a.log.String())
	}
	a.register(source("c", "m")) // a client repairs an entry
	beat(a)
	b := newPeer(t, url, "b")
	beat(b)
	holds(t, "c:m good:m x:m", a, b)
	must.Succeed(t, client.HSet(t.Context(), key("follows"), "a", "nonsense", "b", `{"synced":"x"}`, "z", `{"synced":[["x","default",0]]}`).
		Err())
	a.now = a.now.Add(time.Minute)
	if rows, complete := a.registry.List(t.Context()); len(rows) != 6 || !complete || len(rows[len(rows)-1].Followers) != 1 {
		t.Errorf("%v %+v", complete, rows)
	}
}

// forge writes an entry that no replica has written.
func forge(t *testing.T, p *peer, field, value string) {
	t.Helper()
	client, key := p.members.Store().Client(), p.members.Store().Key
	must.Succeed(t, client.HSet(t.Context(), key("sources"), field, value).Err())
	must.Succeed(t, client.Incr(t.Context(), key("revision")).Err())
}

// TestRegistryIgnoresForgedTimes writes entries whose times no change of a replica can outdo, or which readers could find
// elsewhere in the text than the scripts of the store. They are not taken over, and a client that registers or unregisters
// a source counts.
func TestRegistryIgnoresForgedTimes(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	soon := time.Now().Add(farAhead + time.Minute).UnixMilli()
	far := map[string]string{
		"other order":      `{"gone":true,"at":9007199254740983,"by":"x"}`,
		"last":             `{"at":9007199254740991,"gone":true,"by":"x"}`,
		"too large":        `{"at":9007199254740992,"gone":true,"by":"x"}`,
		"beyond a day":     fmt.Sprintf(`{"at":%d,"gone":true,"by":"x"}`, soon),
		"twice":            `{"at":5,"gone":true,"at":9007199254740983}`,
		"capital":          `{"at":5,"gone":true,"AT":9007199254740983}`,
		"space":            `{"at": 9007199254740983,"gone":true}`,
		"space before":     ` {"at":9007199254740983,"gone":true}`,
		"space behind":     `{"at":9007199254740983 ,"gone":true}`,
		"alone":            `{"at":9007199254740983}`,
		"capital in front": `{"At":9007199254740983,"gone":true}`,
	}
	names := slices.Sorted(maps.Keys(far))
	want := func(model string) string {
		all := make([]string, len(names))
		for i, name := range names {
			all[i] = name + ":" + model
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	forgeAll := func() {
		for name, text := range far {
			forge(t, a, fmt.Sprintf(`[%q,"default",0]`, name), text)
		}
	}
	forgeAll() // before anybody knows a source of these names
	beat(a, b)
	for _, name := range names {
		b.register(source(name, "m"))
	}
	beat(b, a)
	holds(t, want("m"), a, b)
	forgeAll() // what replicas know is written again
	beat(a, b)
	holds(t, want("m"), a, b)
	c := newPeer(t, url, "c")
	beat(c)
	holds(t, want("m"), a, b, c)
	forgeAll()
	beat(a)
	forgeAll()
	for _, name := range names {
		b.register(source(name, "n"))
	}
	beat(b, a, c)
	holds(t, want("n"), a, b, c)
	forgeAll()
	for _, name := range names {
		a.unregister(name)
	}
	beat(a, b, c)
	holds(t, "", a, b, c)
	for field, text := range a.members.Store().Client().HGetAll(t.Context(), a.members.Store().Key("sources")).Val() {
		if _, at, _, reason := parseRecord(field, text); reason != "" || at >= soon {
			t.Errorf("%s: %s stays: %s", field, text, reason)
		}
	}
}

// TestRegistrySurvivesAStoreSetBack has entries of a store whose clock was days ahead, and was then set right. They are written
// again with times of now, without undoing what clients change meanwhile.
func TestRegistrySurvivesAStoreSetBack(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	for _, name := range []string{"changed", "kept", "left"} {
		a.register(source(name, "m"))
	}
	beat(a, b)
	client, key := a.members.Store().Client(), a.members.Store().Key
	for field, text := range client.HGetAll(t.Context(), key("sources")).Val() { // as if the store had been days ahead
		n, at, _, _ := parseRecord(field, text)
		late := at + 3*farAhead.Milliseconds()
		text = strings.Replace(text, timed(at), timed(late), 1)
		must.Succeed(t, client.HSet(t.Context(), key("sources"), field, text).Err())
		for _, p := range []*peer{a, b} {
			e := p.registry.known[n]
			e.at, e.text = late, text
			if e.ours != 0 {
				e.ours = late
			}
		}
	}
	b.register(source("changed", "n"))
	b.unregister("left")
	beat(b, a)
	holds(t, "changed:n kept:m", a, b)
	b.later()
	a.later()
	beat(a, b)
	a.register(source("changed", "o"))
	beat(a, b)
	c := newPeer(t, url, "c")
	beat(c)
	holds(t, "changed:o kept:m", a, b, c)
	before := client.Get(t.Context(), key("revision")).Val()
	beat(a, b, c, a, b, c)
	if now := client.Get(t.Context(), key("revision")).Val(); now != before {
		t.Errorf("replicas write again and again: revision %s became %s", before, now)
	}
}

// TestRegistrySweepsForgedTimes ends an entry with a forged time, which gets the time of its end.
func TestRegistrySweepsForgedTimes(t *testing.T) {
	t.Parallel()
	a := newPeer(t, redistest.Start(t).URL(), "a")
	const field = `["x","default",0]`
	forge(t, a, field, `{"at":9007199254740991,"configured":true,"source":{"instance_id":"x"}}`)
	client, key := a.members.Store().Client(), a.members.Store().Key
	must.Succeed(t, client.ZAdd(t.Context(), key("ends"), redis.Z{Score: 1, Member: field}).Err())
	beat(a)
	text := client.HGet(t.Context(), key("sources"), field).Val()
	if _, at, r, reason := parseRecord(field, text); reason != "" || !r.Swept || at > time.Now().Add(time.Hour).UnixMilli() {
		t.Errorf("%s: %s", reason, text)
	}
}

// TestRegistryMendsTheRevision damages the revision, before a beat and between a beat and what follows it: replicas read the
// registry again, and learn what other replicas have registered.
func TestRegistryMendsTheRevision(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	client, key, ctx := a.members.Store().Client(), a.members.Store().Key, t.Context()
	a.register(source("x", "m"))
	beat(a, b)
	want := []string{"x:m"}
	for i, damage := range []string{"abc", "9223372036854775807", "9007199254740992", "-5", "007", "1.5", "", "a list",
		"9007199254740991"} {
		spoil := func() {
			must.Succeed(t, client.Del(ctx, key("revision")).Err())
			if damage == "a list" {
				must.Succeed(t, client.RPush(ctx, key("revision"), 1).Err())
			} else {
				must.Succeed(t, client.Set(ctx, key("revision"), damage, 0).Err())
			}
		}
		names := [...]string{fmt.Sprint("before", i), fmt.Sprint("between", i), fmt.Sprint("forged", i)}
		spoil()
		a.register(source(names[0], "m"))
		step(a, b, b) // the clock stands: nothing is read again because a minute has passed
		a.members.Beat(ctx)
		b.members.Beat(ctx)
		spoil()
		b.registry.Sync(ctx)
		a.register(source(names[1], "m"))
		a.registry.Sync(ctx)
		step(b, a, b)
		must.Succeed(t, client.HSet(ctx, key("sources"), fmt.Sprintf(`[%q,"default",0]`, names[2]),
			fmt.Sprintf(`{"at":5,"source":{"instance_id":%q,"modelname":"m","type":"vLLM","block_size":16,"endpoint":"tcp://127.0.0.1:1"}}`,
				names[2])).Err())
		spoil()
		step(a, b, a)
		for _, name := range names {
			want = append(want, name+":m")
		}
		slices.Sort(want)
		holds(t, strings.Join(want, " "), a, b)
		if n, err := client.Get(ctx, key("revision")).Int64(); err != nil || n < 0 || n > 1<<53 {
			t.Errorf("%s: the revision is %d, %v", damage, n, err)
		}
		if t.Failed() {
			t.Fatalf("the revision was %q", damage)
		}
	}
}

// TestRegistryReadsNoOversizeEntries writes entries that are too long in text or name: what the store answers stays small,
// so that a beat behind it is not late, and they are counted and removed.
func TestRegistryReadsNoOversizeEntries(t *testing.T) {
	t.Parallel()
	a := newPeer(t, redistest.Start(t).URL(), "a")
	a.register(source("x", "m"))
	flood := func() {
		for i := range 3 {
			forge(t, a, fmt.Sprintf(`["big%d","default",0]`, i), strings.Repeat("A", maxRecord+1))
			forge(t, a, fmt.Sprint(i, strings.Repeat("A", maxRecord)), "A")
		}
	}
	flood()
	beat(a)
	holds(t, "x:m", a)
	if got := fmt.Sprint(a.registry.refused); got != "map[size:6]" {
		t.Error(got)
	}
	flood()
	answer, err := readStore(t.Context(), a.registry)
	must.Succeed(t, err)
	if n := a.members.Store().Client().HLen(t.Context(), a.members.Store().Key("sources")).Val(); n != 1 {
		t.Errorf("%d entries are left", n)
	}
	if size := len(fmt.Sprint(answer)); size > 4000 {
		t.Errorf("the store answers with %d bytes", size)
	}
}

// TestRegistryLogsFlood has many entries that cannot be used, which change all the time: they are
// one line of the log a minute.
func TestRegistryLogsFlood(t *testing.T) {
	t.Parallel()
	a := newPeer(t, redistest.Start(t).URL(), "a")
	for round := range 4 {
		for i := range 20 {
			forge(t, a, fmt.Sprintf("bad%d", i), fmt.Sprint(round))
			forge(t, a, fmt.Sprintf(`["r%d","default",0]`, i),
				fmt.Sprintf(`{"at":%d,"by":"x","source":{"instance_id":"r%d","block_size":-16}}`, round+1, i))
		}
		beat(a)
	}
	lines := func() []string {
		all := strings.Split(strings.TrimSpace(a.log.String()), "\n")
		return slices.DeleteFunc(all, func(line string) bool { return !strings.Contains(line, `"level":"warn"`) })
	}
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], `"syntax":20`) {
		t.Errorf("%d lines: %q", len(got), got)
	}
	a.later()
	beat(a)
	if got := lines(); len(got) != 2 || !strings.Contains(got[1], `"syntax":60`) || !strings.Contains(got[1], `"example"`) {
		t.Errorf("%d lines: %q", len(got), got)
	}
	a.later()
	beat(a)
	if got := lines(); len(got) != 2 {
		t.Errorf("without news: %d lines: %q", len(got), got)
	}
}

// TestRegistryForgedGiveWay fills the limits of a replica with entries that no replica has written.
// They give way to clients, to the configuration and to what other replicas have written.
func TestRegistryForgedGiveWay(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := newPeer(t, url, "a"), newPeer(t, url, "b")
	b.conductor.Tune(conductor.Tunables{MaxSources: 4, MaxTenantSources: 3})
	b.register(source("kept", "m"))
	beat(a, b)
	const forged = `{"at":%d,%s"source":{"instance_id":%q,"tenant_id":%q,"modelname":"m","type":"vLLM","block_size":16,` +
		`"endpoint":"tcp://127.0.0.1:1"}}`
	for i := range 10 {
		for _, x := range []struct{ name, by string }{{"forged", ""}, {"older", `"by":"gone",`}} {
			name, tenant := fmt.Sprint(x.name, i), []string{"default", "blue"}[i%2]
			forge(t, b, fmt.Sprintf(`[%q,%q,0]`, name, tenant), fmt.Sprintf(forged, 1+i, x.by, name, tenant))
		}
	}
	beat(b)
	holds(t, "kept:m older0:m older1:m older2:m", b) // those that look like those of a replica come first
	b.register(source("client", "m"))
	holds(t, "client:m kept:m older0:m older1:m", b)
	other := source("other", "m")
	a.register(other)
	beat(a)
	beat(b)
	holds(t, "client:m kept:m older1:m other:m", b) // of the tenant, which has its three
	b.configure(source("own", "m"))
	holds(t, "client:m kept:m other:m own:m", b)
	if err := b.clients.Register(source("more", "m"), ingest.RegisterOptions{}); err == nil {
		t.Error("sources of replicas give way")
	}
	b.unregister("client")
	b.later()
	beat(b)
	holds(t, "kept:m older0:m other:m own:m", b) // there is room again
}

// TestRegistryKeepsClients has sources that clients of this replica registered, and entries of the same that no known
// replica wrote, as after a restart of the whole group. They do not give way: a registration too many is refused.
func TestRegistryKeepsClients(t *testing.T) {
	t.Parallel()
	b := newPeer(t, redistest.Start(t).URL(), "b")
	b.conductor.Tune(conductor.Tunables{MaxSources: 2})
	asked := registration.Registration{Instance: "asked", Type: registration.TypeVLLM, Model: "m"}
	must.Succeed(t, b.registry.cfg.Targets.Add(discovery.Target{Registration: asked, URL: "http://127.0.0.1:1"}, false))
	b.registry.Registered(Source{Registration: asked, Discover: "http://127.0.0.1:1"})
	b.register(source("one", "m"))
	b.register(source("two", "m"))
	beat(b)
	client, key := b.members.Store().Client(), b.members.Store().Key
	entries, err := client.HGetAll(t.Context(), key("sources")).Result()
	if err != nil || len(entries) != 3 {
		t.Fatal(err, entries)
	}
	for field, text := range entries {
		other := strings.Replace(text, `"by":"b"`, `"by":"gone"`, 1)
		if other == text {
			t.Fatal(text)
		}
		forge(t, b, field, other)
	}
	beat(b)
	if err := b.clients.Register(source("more", "m"), ingest.RegisterOptions{}); !errors.Is(err, ingest.ErrTooManySources) {
		t.Errorf("one source too many: %v", err)
	}
	holds(t, "one:m two:m", b)
	more := asked
	for _, instance := range []string{"more", "still-more"} {
		more.Instance = instance
		err = b.registry.cfg.Targets.Add(discovery.Target{Registration: more, URL: "http://127.0.0.1:1"}, false)
	}
	if !errors.Is(err, ingest.ErrTooManySources) {
		t.Errorf("one target too many: %v", err)
	}
}
