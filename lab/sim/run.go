package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// farewell bounds the work after the run was interrupted.
const farewell = 5 * time.Second

// lastWait is how many times longer than in between the server may take to
// catch up at the end, where a backlog of everything published may wait.
const lastWait = 6

// Run simulates a fleet against a server and reports how its answers compare with the
// truth. A cancelled ctx ends the run early; the report then covers the run so far. The
// error is that of the simulation. Report.Err judges the server.
func Run(ctx context.Context, c Config) (*Report, error) {
	f, err := newFleet(c)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.run(ctx)
}

func (f *Fleet) run(ctx context.Context) (report *Report, failed error) {
	cl, err := newClient(&f.Config, f.Clients)
	if err != nil {
		return nil, err
	}
	if err := cl.reach(ctx); err != nil {
		return nil, err
	}
	d := newDriver(f, cl)
	if !f.Keep {
		defer func() { failed = errors.Join(failed, d.unregister()) }()
	}
	if f.pool != nil {
		if err := d.register(ctx, d.fleet.poolRegistration()); err != nil {
			return nil, err
		}
		if err := d.followed(ctx); err != nil {
			return nil, err
		}
	}
	if err := f.start(); err != nil {
		return nil, err
	}
	if err := d.warm(); err != nil {
		return nil, err
	}
	for _, r := range d.fleet.ranks {
		if err := d.register(ctx, d.fleet.registration(r)); err != nil {
			return nil, err
		}
	}

	if f.Servers != nil {
		if err := d.known(ctx); err != nil {
			return nil, err
		}
	}
	f.Stage.enter(d)

	d.fleet.Progress.start(f.total())
	began := time.Now()
	faults, calm := context.WithCancel(ctx)
	disturbed := make(chan struct{})
	go func() {
		defer close(disturbed)
		var both sync.WaitGroup
		if d.fleet.Faults {
			both.Go(func() { d.disturb(faults) })
		}
		both.Go(func() { d.restarts(faults) })
		both.Wait()
	}()
	err = d.drive(ctx)
	calm()
	<-disturbed
	report = &Report{Interrupted: ctx.Err() != nil, Elapsed: time.Since(began)}
	d.fleet.Progress.stop()
	if err == nil {
		err = f.drain()
	}
	if err == nil && f.Faults {
		err = d.heal()
	}
	if err == nil && ctx.Err() == nil {
		if lag := d.await(ctx, lastWait*f.SettleTimeout, true); lag != nil {
			report.Lag = lag.Error()
		}
		d.audit(ctx)
	}
	d.fill(ctx, report)
	if f.Samples && err == nil && ctx.Err() == nil {
		report.Samples, err = d.samples(ctx)
	}
	return report, err
}

// register announces a rank or the pool.
func (d *driver) register(ctx context.Context, g registration) error {
	if err := d.client.post(ctx, "/register", g); err != nil {
		return fmt.Errorf("cannot register %s: %w", g.key(), err)
	}
	d.registered = append(d.registered, g)
	return nil
}

// unregister takes all registrations back, also after ctx of the run ended.
func (d *driver) unregister() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	var errs []error
	for _, g := range slices.Backward(d.registered) {
		if err := d.client.post(ctx, "/unregister", g); err != nil {
			errs = append(errs, fmt.Errorf("cannot unregister %s: %w", g.key(), err))
		}
	}
	return errors.Join(errs...)
}
