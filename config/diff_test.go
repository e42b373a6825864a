package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDiff(t *testing.T) {
	f := func(change func(*Config), want ...string) {
		t.Helper()
		base := Default()
		base.Sources = []Source{
			{Endpoint: "tcp://h:1", Type: "vLLM", ModelName: "m", InstanceID: "a", BlockSize: 16},
			{Endpoint: "tcp://h:2", Type: "vLLM", ModelName: "m", InstanceID: "a", BlockSize: 16, DPRank: 1, TenantID: "blue"},
		}
		next := base
		next.Sources = append([]Source(nil), base.Sources...)
		change(&next)
		var got []string
		for _, c := range Diff(base, next) {
			live := "restart"
			if c.Live {
				live = "live"
			}
			got = append(got, fmt.Sprintf("%s: %s -> %s (%s, %t %t)", c.Path, c.Old, c.New, live, c.Before != nil, c.After != nil))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Sources[0].TenantID = "default" }) // the same tenant, written out
	f(func(c *Config) { c.Log.Level = "debug"; c.Limits.MaxTokens = 5 },
		"log.level: info -> debug (live, false false)", "limits.max_tokens: 2097152 -> 5 (live, false false)")
	f(func(c *Config) { c.Hash.Seed = 0; c.Listeners = c.Listeners[:1] },
		"listeners: :13333=conductor,:8090=dynamo -> :13333=conductor (restart, false false)",
		"hash.seed: 1337 -> 0 (restart, false false)")
	f(func(c *Config) { c.Sources = c.Sources[1:] },
		"sources[a|default|0]: vLLM tcp://h:1 model \"m\" block_size 16 ->  (live, true false)")
	f(func(c *Config) {
		c.Sources[1].DPRank = 2
		c.Sources[1].LoraName = "l"
		c.Sources[1].AdditionalSalt = "s"
	},
		"sources[a|blue|1]: vLLM tcp://h:2 model \"m\" block_size 16 ->  (live, true false)",
		"sources[a|blue|2]:  -> vLLM tcp://h:2 model \"m\" block_size 16 lora \"l\" salt \"s\" (live, false true)")
	f(func(c *Config) { c.Sources[0].ReplayEndpoint = "tcp://h:3" },
		"sources[a|default|0]: vLLM tcp://h:1 model \"m\" block_size 16 -> vLLM tcp://h:1 replay tcp://h:3 model \"m\" block_size 16 (live, true true)")
	f(func(c *Config) {
		c.Sources[0].HashProfile = HashProfile{Strategy: "vllm_v1", Algorithm: "sha256", PythonHashSeed: "0", IndexProjection: "low64_be"}
	},
		"sources[a|default|0]: vLLM tcp://h:1 model \"m\" block_size 16 -> vLLM tcp://h:1 model \"m\" block_size 16 hash_profile vllm_v1/sha256/0/low64_be (live, true true)")
	f(func(c *Config) { c.Sources[0].MediaTTL = map[string]time.Duration{"STORAGE": time.Hour, "CPU": 0} },
		"sources[a|default|0]: vLLM tcp://h:1 model \"m\" block_size 16 -> vLLM tcp://h:1 model \"m\" block_size 16 ttl.CPU 0s ttl.STORAGE 1h (live, true true)")
	f(func(c *Config) { c.Sources[0], c.Sources[1] = c.Sources[1], c.Sources[0] })
}
