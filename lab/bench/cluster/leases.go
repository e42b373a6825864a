package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/lab/harness"
	"kvconductor/store"
)

// LeaseReport is what sources cost whose engines are silent: two replicas tend all leases, and one
// of them waits for all logs. Both are in this process.
type LeaseReport struct {
	Sources    int     `json:"sources"`
	Cores      float64 `json:"cpu_cores"` // of both replicas
	StoreCores float64 `json:"store_cpu_cores"`
}

// silent is a transport to engines that publish nothing.
type silent struct{}

type silence struct {
	ended chan struct{}
	once  sync.Once
}

func (silent) Subscribe(context.Context, string) (stream.Subscription, error) {
	return &silence{ended: make(chan struct{})}, nil
}

func (silent) Replay(context.Context, string, uint64) (stream.Subscription, error) {
	return nil, fmt.Errorf("a silent engine has no replays")
}

func (s *silence) Recv() (payload.Message, error) {
	<-s.ended
	return payload.Message{}, context.Canceled
}

func (s *silence) Close() error {
	s.once.Do(func() { close(s.ended) })
	return nil
}

// leases measures sources without events.
func (c *Config) leases(sources int) (*LeaseReport, error) {
	c.Progress.Say("%d leases", sources)
	shared, err := store.Open(store.Config{URL: c.Store, Name: "info", Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	defer shared.Close()
	name := rand.Text()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, id := range []string{"tail", "follower"} {
		of, logs, end, err := replica(c.Store, name, id, silent{})
		if err != nil {
			return nil, err
		}
		defer end()
		var open sync.WaitGroup
		for i := range sources {
			s := of(strconv.Itoa(i)).(interface {
				stream.Transport
				stream.Observer
			})
			open.Go(func() {
				for ctx.Err() == nil {
					if sub, err := s.Subscribe(ctx, ""); err == nil {
						s.Changed(stream.Synced, false)
						context.AfterFunc(ctx, func() { sub.Close() })
						return
					}
				}
			})
		}
		open.Wait()
		if st := logs.Stats(); id == "tail" && st.Held != sources {
			return nil, fmt.Errorf("%d of %d leases are held", st.Held, sources)
		}
	}
	time.Sleep(c.Duration / 2) // the leases that were taken last are renewed in step with the others
	ours, theirs, err := harness.CPU(), time.Duration(0), error(nil)
	if theirs, err = storeCPU(ctx, shared); err != nil {
		return nil, err
	}
	begun := time.Now()
	time.Sleep(2 * c.Duration)
	took := time.Since(begun).Seconds()
	ours = harness.CPU() - ours
	after, err := storeCPU(ctx, shared)
	return &LeaseReport{Sources: sources, Cores: ours.Seconds() / took, StoreCores: (after - theirs).Seconds() / took}, err
}

// storeCPU is the processor time of the store so far.
func storeCPU(ctx context.Context, s *store.Store) (cpu time.Duration, err error) {
	text, err := s.Client().Info(ctx, "cpu").Result()
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		cpu += time.Duration(seconds * float64(time.Second))
	}
	return cpu, err
}
