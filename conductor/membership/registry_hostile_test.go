package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	if got := fmt.Sprint(a.registry.refused); got != "map[name:2 refused:3 size:1 syntax:6]" {
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
