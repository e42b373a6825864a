// Package engines_test runs the publishers and caches of released engines against the server.
//
// A process per engine rank loads the release's own modules, serves a simulated workload and
// knows the truth about its cache. The server is bin/conductor. Every answer is compared with
// the truth once the server's watermark is the publisher's last sequence number.
package engines_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
)

const (
	model     = "m"
	blockSize = 16
)

// A release is one version of an engine.
type release struct{ engine, version string }

func (r release) String() string { return r.engine + " " + r.version }

// sglang reports which engine it is; all others are vLLM.
func (r release) sglang() bool { return r.engine == "sglang" }

// since reports whether the release is of vLLM and not before version.
func (r release) since(version string) bool {
	return !r.sglang() && slices.Compare(numbers(r.version), numbers(version)) >= 0
}

// sglangSince is since for SGLang.
func (r release) sglangSince(version string) bool {
	return r.sglang() && slices.Compare(numbers(r.version), numbers(version)) >= 0
}

func numbers(version string) (out []int) {
	for _, part := range strings.Split(version, ".") {
		n, _ := strconv.Atoi(part)
		out = append(out, n)
	}
	return out
}

// result is one row of the table.
type result struct {
	release        release
	scenario       string
	answers, wrong int
	note           string
}

// setting reads a number from the environment.
func setting(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number", name, os.Getenv(name))
	}
	return n
}

// TestEngines runs every scenario that a release has classes for, and prints a table.
func TestEngines(t *testing.T) {
	if os.Getenv("ENGINES_CACHE") == "" {
		t.Skip("ENGINES_CACHE is not set to releases that make conformance-engines fetches")
	}
	answers := setting(t, "ENGINES_ANSWERS")
	var results []result
	for _, name := range strings.Fields(os.Getenv("ENGINES_VERSIONS")) {
		r := release{}
		r.engine, r.version, _ = strings.Cut(name, "==")
		if r.engine == "lmcache" {
			continue // TestLMCache
		}
		chosen := slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool { return !s.has(r) })
		models := slices.DeleteFunc(hybrids(), func(s scenario) bool { return !s.has(r) })
		left := answers
		t.Run(r.engine+"-"+r.version, func(t *testing.T) {
			for i, s := range slices.Concat(chosen, models) {
				share := enough
				if i < len(chosen) {
					// One that compares nothing leaves its share to those behind it.
					share = (left + len(chosen) - i - 1) / (len(chosen) - i)
				}
				t.Run(strings.ReplaceAll(s.name, " ", "-"), func(t *testing.T) {
					f := &fleet{t: t, release: r, want: share, random: rand.New(rand.NewPCG(1, uint64(share)))}
					defer func() {
						left -= f.answers
						results = append(results, result{r, s.name, f.answers, f.wrong, f.note})
					}()
					s.run(f)
					if f.answers < f.want {
						t.Errorf("%d answers, want %d", f.answers, f.want)
					}
					if f.wrong > 0 {
						t.Errorf("%d of %d answers are wrong", f.wrong, f.answers)
					}
				})
			}
		})
	}
	if len(results) == 0 {
		if strings.Contains(os.Getenv("ENGINES_VERSIONS"), "lmcache==") {
			return
		}
		t.Fatal("ENGINES_VERSIONS names no release")
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENGINE\tSCENARIO\tANSWERS\tWRONG\tNOTE")
	total := result{}
	for i, row := range results {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", row.release, row.scenario, row.answers, row.wrong, row.note)
		total.answers, total.wrong = total.answers+row.answers, total.wrong+row.wrong
		if i+1 == len(results) || results[i+1].release != row.release {
			fmt.Fprintf(w, "%s\tall\t%d\t%d\t\n", row.release, total.answers, total.wrong)
			total = result{}
		}
	}
	w.Flush()
	fmt.Print(text.String())
}
