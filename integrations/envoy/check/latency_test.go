package check

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLatency measures what the picker adds to a request that needs no tokenizer: the same load goes through an Envoy with the picker,
// which asks Conductor about each request and reports it, and through one without a picker, by turns. It runs if LATENCY is the number of
// seconds of a turn. It asserts that requests succeed, and that Conductor's answers decided all of them, not how long they take: the
// target is at most 1 ms at p50 and 5 ms at p99.
func TestLatency(t *testing.T) {
	seconds, _ := strconv.Atoi(os.Getenv("LATENCY"))
	if seconds == 0 {
		t.Skip("LATENCY is not set")
	}
	const rate, turns = 500, 3 // requests a second; turns of each
	// Prompts that begin differently. When one is sent for the first time, no engine has it; afterwards one engine has all of it.
	bodies := make([]string, 400)
	for i := range bodies {
		bodies[i] = completion(i, 8192)
	}
	without := start(t, variants[0], settings{edit: func(b bootstrap) {
		b.manager()["http_filters"] = slices.DeleteFunc(b.manager()["http_filters"].([]any), func(f any) bool {
			return at(f, "name") == "envoy.filters.http.ext_proc"
		})
	}})
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			// Picker and Conductor are processes of their own, as they will be; the load and the engines share one.
			with, p := startReal(t, v, settings{}, "")
			var all, base []time.Duration
			var picker, conductor, envoy, envoyAlone float64 // seconds of processors
			for range turns {
				envoyAlone -= cpuSeconds(t, without.envoy)
				base = append(base, load(t, without, bodies, rate, seconds)...)
				envoyAlone += cpuSeconds(t, without.envoy)

				pids := map[int]*float64{p.picker.cmd.Process.Pid: &picker, p.conductor.cmd.Process.Pid: &conductor, with.envoy: &envoy}
				for pid, sum := range pids {
					*sum -= cpuSeconds(t, pid)
				}
				all = append(all, load(t, with, bodies, rate, seconds)...)
				for pid, sum := range pids {
					*sum += cpuSeconds(t, pid)
				}
			}
			p50, p99 := percentiles(all)
			base50, base99 := percentiles(base)
			t.Logf("%d requests/s of %d bytes: p50 %s p99 %s; without picker p50 %s p99 %s; it adds %s and %s",
				rate, len(bodies[0]), p50, p99, base50, base99, p50-base50, p99-base99)
			micros := func(seconds float64) float64 { return seconds / float64(len(all)) * 1e6 }
			t.Logf("CPU for a request: picker %.0f us, Conductor %.0f us, Envoy %.0f us, %.0f us of these without the picker; "+
				"picker and Conductor are %.1f times Envoy without the picker",
				micros(picker), micros(conductor), micros(envoy), micros(envoyAlone), (picker+conductor)/envoyAlone)
			hits, misses, choices := p.choices("prefix"), p.choices("no_prefix"), p.choices("")
			t.Logf("%d choices, %d of them for an engine that has the prompt", choices, hits)
			if choices != len(all) || hits+misses != choices || hits == 0 {
				t.Errorf("%d requests, %d choices: %d prefix, %d no_prefix", len(all), choices, hits, misses)
			}
		})
	}
}

// cpuSeconds returns how long processors have worked for a process.
func cpuSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The fields after the name of the program, which is in brackets because it may have spaces. Fields 11 and 12 of those are the CPU
	// time in user and in kernel mode, in hundredths of a second.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	kernel, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatalf("/proc/%d/stat has %q", pid, text)
	}
	return float64(user+kernel) / 100
}

func percentiles(of []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(of)
	return of[len(of)/2].Round(time.Microsecond), of[len(of)*99/100].Round(time.Microsecond)
}

// load sends bodies by turns at a fixed rate, whatever becomes of them, and returns how long each request took.
func load(t *testing.T, e *env, bodies []string, rate, seconds int) []time.Duration {
	took := make([]time.Duration, rate*seconds)
	var requests sync.WaitGroup
	begin := time.Now()
	for i := range took {
		<-time.After(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		requests.Go(func() {
			start := time.Now()
			r := e.newRequest(context.Background(), "/v1/completions", strings.NewReader(bodies[i%len(bodies)]))
			response, err := e.client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			took[i] = time.Since(start)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("status %d: %v", response.StatusCode, err)
			}
		})
	}
	requests.Wait()
	return took
}
