package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"kvconductor/lab/harness"
)

// rounds is how many turns each handler takes. So other load on the machine meets all
// handlers.
const rounds = 3

// serving is the serving process as its parent sees it.
type serving struct {
	hello
	*harness.Process
}

// Run measures.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	s, err := start(&c)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := newReport(&c, s)
	if all, _, core := harness.Allowed(); s.Pinned == "" {
		if err := harness.Pin(core); err != nil {
			return nil, err
		}
		defer harness.Pin(all)
	}
	sides := []*side{{name: "in " + c.Codec, figures: &r.Figures, profile: c.Profile != ""}}
	if sides[0].client, err = s.client(&c, c.Codec); err != nil {
		return nil, err
	}
	defer sides[0].client.close()
	if c.Other != "" {
		r.Other = &Figures{}
		k, err := s.client(&c, c.Other)
		if err != nil {
			return nil, fmt.Errorf("other: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "in " + c.Other, figures: r.Other, client: k})
	}
	if c.Baseline {
		r.Baseline = &Figures{}
		k, err := newClient(&c, s.Compared, pathQuery, JSON, c.HTTP2)
		if err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "the baseline", figures: r.Baseline, client: k})
	}
	if c.Reading {
		r.Reading = &Figures{}
		k, err := newClient(&c, s.Compared, pathRead, c.Codec, c.HTTP2)
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		defer k.close()
		sides = append(sides, &side{name: "for nothing but reading", figures: r.Reading, client: k})
	}
	turns := 1
	if len(sides) > 1 {
		turns = rounds
	}
	warm := min(c.Duration/4, time.Second)
	for turn := range turns {
		for _, side := range sides {
			c.Progress.Say("asking %s, turn %d of %d, %v", side.name, turn+1, turns, c.Duration/time.Duration(turns))
			if err := side.run(s, warm, c.Duration/time.Duration(turns)); err != nil {
				return nil, err
			}
		}
	}
	for _, side := range sides {
		side.sum.figures(side.figures, side.client)
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

// client returns a client of the server in a codec.
func (s *serving) client(c *Config, codec string) (*client, error) {
	switch {
	case isGRPC(codec):
		return newClient(c, s.GRPC, "", codec, false)
	case codec == JSONHashes:
		return newClient(c, s.Address, pathHash, codec, c.HTTP2)
	}
	return newClient(c, s.Address, pathQuery, codec, c.HTTP2)
}

// side is one handler that is measured: the server's, or one to compare it with.
type side struct {
	name    string
	client  *client
	figures *Figures
	sum     windowed
	profile bool // of the first turn
}

func (s *side) run(server *serving, warm, measured time.Duration) error {
	if s.profile {
		if _, err := server.order(orderProfile); err != nil {
			return err
		}
	}
	w, err := s.client.run(warm, measured, func() (usage, error) { return server.order(orderUsage) })
	if s.profile {
		s.profile = false
		_, ended := server.order(orderProfile)
		err = errors.Join(err, ended)
	}
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

// start runs the serving process until it can be asked.
func start(c *Config) (*serving, error) {
	p, err := harness.Start("serving", c.Server())
	if err != nil {
		return nil, err
	}
	c.Progress.Say("loading %d blocks held by %d of %d instances each", c.families()*c.chain(), c.Holders, c.Workers)
	s := &serving{Process: p}
	if err := s.read(&s.hello); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *serving) read(v any) error {
	line, err := s.Line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("the serving process says %q: %w", line, err)
	}
	return nil
}

func (s *serving) order(order string) (u usage, err error) {
	if _, err := fmt.Fprintln(s, order); err != nil {
		return u, fmt.Errorf("the serving process is gone: %w", err)
	}
	if err := s.read(&u); err != nil {
		return u, err
	}
	if u.Failed != "" {
		err = fmt.Errorf("the serving process: %s", u.Failed)
	}
	return u, err
}
