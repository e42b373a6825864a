package query

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"example.com/conductor/lab/harness"
)

// rounds is how many turns each handler takes. So other load on the machine meets all
// handlers.
const rounds = 3

// meter reads what a process has used so far, before and after a window.
type meter interface {
	beginWindow() (usage, error)
	endWindow() (usage, error)
}

// Run measures.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.checkConfig(); err != nil {
		return nil, harness.Mistakef("%w", err)
	}
	report, err := measureAll(ctx, &c)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return report, err
}

func measureAll(ctx context.Context, c *Config) (*Report, error) {
	s, err := startServer(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.stopServer()
	var other *compared
	if c.Baseline || c.Reading {
		c.Progress.Say("loading the same blocks into the process to compare with")
		if other, err = startCompared(c.Compared()); err != nil {
			return nil, err
		}
		defer other.Stop()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.clients))
	r := newReport(c, s)
	if all, _, _ := harness.Allowed(); s.Pinned == "" {
		if err := harness.Pin(s.clientCores); err != nil {
			return nil, err
		}
		defer harness.Pin(all)
	}
	if c.Reports > 0 {
		c.Progress.Say("reporting %d prompts, each with %d tokens of its own", c.Reports, c.NewTokens)
		if r.Expected, err = s.sendReports(ctx, c); err != nil {
			return nil, err
		}
	}
	sides := []*side{{name: "in " + c.Codec, meter: s, figures: &r.Figures}}
	if sides[0].client, err = s.newClient(c, c.Codec); err != nil {
		return nil, err
	}
	defer sides[0].client.close()
	if c.Other != "" {
		r.Other = &Figures{}
		k, err := s.newClient(c, c.Other)
		if err != nil {
			return nil, fmt.Errorf("other: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "in " + c.Other, meter: s, figures: r.Other, client: k})
	}
	if c.Baseline {
		r.Baseline = &Figures{}
		k, err := newClient(c, other.Address, pathQuery, JSON, c.HTTP2)
		if err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "the baseline", meter: other, figures: r.Baseline, client: k})
	}
	if c.Reading {
		r.Reading = &Figures{}
		k, err := newClient(c, other.Address, pathRead, c.Codec, c.HTTP2)
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "for nothing but reading", meter: other, figures: r.Reading, client: k})
	}
	turns := 1
	if len(sides) > 1 {
		turns = rounds
	}
	if s.churn != nil {
		if _, err := s.churn.sendOrder(orderPublish); err != nil {
			return nil, err
		}
		defer s.churn.sendOrder(orderSilence)
	}
	if c.Changes > 0 {
		if s.changes, err = s.startChanges(ctx, c.Changes, c.BlockSize); err != nil {
			return nil, err
		}
		defer s.changes.stop()
	}
	warm := min(c.Duration/4, time.Second)
	var profiled func() error // waits for the profile of the turn
	begun := time.Now()
	for turn := range turns {
		for _, side := range sides {
			c.Progress.Say("asking %s, turn %d of %d, %v", side.name, turn+1, turns, c.Duration/time.Duration(turns))
			if turn == 0 && side == sides[0] && c.Profile != "" {
				profiled = s.recordProfile("profile", c.Profile, warm+c.Duration/time.Duration(turns))
			}
			err := side.runSide(warm, c.Duration/time.Duration(turns))
			if profiled != nil {
				err = errors.Join(err, profiled())
				profiled = nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
	for _, side := range sides {
		side.sum.computeFigures(side.figures, side.client)
	}
	if c.Share > 0 {
		if r.Paced, err = s.askAtRate(ctx, c, sides[0].client, c.Share*r.RequestsPerSec); err != nil {
			return nil, err
		}
	}
	if s.changes != nil {
		took := time.Since(begun)
		if err := s.changes.stop(); err != nil {
			return nil, fmt.Errorf("the changes ended: %w", err)
		}
		r.Changes = float64(s.changes.made.Load()) / took.Seconds()
	}
	if c.Other != "" {
		r.OtherRatio, r.OtherCPURatio = r.RequestsPerSec/r.Other.RequestsPerSec, r.Other.ServerCPU/r.ServerCPU
	}
	if c.Baseline {
		r.Ratio = r.RequestsPerSec / r.Baseline.RequestsPerSec
		r.CPURatio = r.Baseline.ServerCPU / r.ServerCPU
	}
	if c.Reading {
		r.ReadingRatio = r.ServerCPU / r.Reading.ServerCPU
	}
	return r, nil
}

// newClient returns a client of the server in a codec.
func (s *served) newClient(c *Config, codec string) (*client, error) {
	switch {
	case isGRPC(codec):
		return newClient(c, s.GRPC, "", codec, false)
	case strings.HasSuffix(strings.TrimSuffix(codec, listOf), routedOf):
		return newClient(c, s.Address, pathRouted, codec, c.HTTP2)
	case strings.TrimSuffix(codec, listOf) == answerOf:
		return s.newAnswerClient(c, codec)
	case codec == candidates:
		return newClient(c, s.Address, pathCandidates, codec, c.HTTP2)
	case strings.HasSuffix(codec, expectedOf):
		return newClient(c, s.Address, pathQuery+"?expected=1", codec, c.HTTP2)
	case codec == jsonHashes:
		return newClient(c, s.Address, pathHash, codec, c.HTTP2)
	}
	return newClient(c, s.Address, pathQuery, codec, c.HTTP2)
}

// side is one handler that is measured: the server's, or one to compare it with.
type side struct {
	name    string
	meter   meter
	client  *client
	figures *Figures
	sum     windowed
}

func (s *side) runSide(warm, measured time.Duration) error {
	if s.client.prepare != nil {
		if err := s.client.prepare(); err != nil {
			return err
		}
	}
	w, err := s.client.askOnAll(warm, measured, s.meter)
	if err != nil {
		return err
	}
	s.sum.took += w.took
	s.sum.client += w.client
	s.sum.latencies.Merge(&w.latencies)
	s.sum.server.CPU += w.server.CPU
	s.sum.server.Objects += w.server.Objects
	s.sum.server.Bytes += w.server.Bytes
	s.sum.server.RSS = w.server.RSS
	return nil
}
