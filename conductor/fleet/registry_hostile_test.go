package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kvconductor/conductor"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
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
	must.Succeed(t, client.HSet(t.Context(), key("follows"), "a", "nonsense", "b", `{"synced":"x"}`, "z", `{"synced":[["x","default",0]]}`).Err())
	a.now = a.now.Add(time.Minute)
	if rows, complete := a.registry.List(t.Context()); len(rows) != 6 || !complete || len(rows[len(rows)-1].Followers) != 1 {
		t.Errorf("%v %+v", complete, rows)
	}
}
