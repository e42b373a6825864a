package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/demo"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim"
	"example.com/conductor/lab/sim/workload"
)

// A server that is killed at random moments, while events flow, goes on from its snapshots:
// no settled answer is wrong afterwards. KILLS says how often.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	kills := 6
	if text := os.Getenv("KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		must.Succeed(t, err)
		kills = n
	}
	for _, faults := range []bool{false, true} {
		t.Run(map[bool]string{false: "calm", true: "faults"}[faults], func(t *testing.T) {
			t.Parallel()
			source, err := workload.NewGenerator("mixed", uint64(time.Now().UnixNano()))
			must.Succeed(t, err)
			s, err := demo.Start(t.Context(), command, faults, 200*time.Millisecond, os.Stderr)
			must.Succeed(t, err)
			defer s.Stop()
			done := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			left := kills
			c := sim.Config{
				Server: s.URL, Tenant: "default", Model: "m", Instances: len(sim.Families), Ranks: 2, Families: sim.Families,
				BlockSize: 16, Device: 2048, Host: 1024, Disk: 2048, Chunk: 2048, Running: 3, ClearEvery: 100,
				Source: &until{Source: source, done: done}, Clients: 2, Warm: 16, Seed: 1 + uint64(time.Now().UnixNano()),
				SettleEvery: 8, SettleTimeout: 20 * time.Second, Audit: 100, Ring: 10_000, Queue: 100_000, Faults: faults,
				Restarts: sim.Restarts{Times: kills, Every: 400 * time.Millisecond,
					Restart: func(ctx context.Context) (sim.Downtime, error) {
						if left == kills-1 { // the second start and later ones have a snapshot
							if err := awaitSnapshot(ctx, s.URL); err != nil {
								return sim.Downtime{}, err
							}
						}
						down, err := s.Restart(ctx)
						if left--; left == 0 {
							time.AfterFunc(time.Second, func() { close(done) })
						}
						return down, err
					}},
			}
			report, err := sim.Run(ctx, c)
			must.Succeed(t, err)
			must.Report(t, cli.NewClient(s.URL, nil).Get(ctx, "/admin/check", new(any)))
			a := report.Answers
			t.Logf("%d kills, %d of %d answers settled, %d partial, %d queries lost", len(report.Restarts), a.Settled, a.Compared,
				a.Partial, report.LostToRestarts)
			if err := report.Err(); err != nil {
				t.Errorf("seed %d: %v\n%q", report.Seed, err, report.Wrong)
			}
			if len(report.Restarts) != kills {
				t.Errorf("%d kills, want %d", len(report.Restarts), kills)
			}
			without := 0
			for _, down := range report.Restarts[1:] {
				if down.Blocks == 0 {
					without++
				}
			}
			// Faults restart engines: a snapshot of that moment may have no block.
			if without > 0 && (!faults || without > kills/2) {
				t.Errorf("%d servers began without a snapshot: %+v", without, report.Restarts)
			}
		})
	}
}

// awaitSnapshot waits until a server began with a snapshot that has blocks, or has written one.
func awaitSnapshot(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	held := regexp.MustCompile(`(?m)^conductor_snapshot_(loaded_)?blocks [1-9]`)
	for {
		_, metrics := get(url + "/metrics")
		if held.MatchString(metrics) {
			return nil
		}
		if !harness.Wait(ctx, 20*time.Millisecond) {
			return errors.New("no snapshot has blocks: " + metrics)
		}
	}
}

// until is a source of requests that ends when done is closed.
type until struct {
	workload.Source
	done <-chan struct{}
}

func (u *until) Next() (workload.Request, bool) {
	select {
	case <-u.done:
		return workload.Request{}, false
	default:
		return u.Source.Next()
	}
}
