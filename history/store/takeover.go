package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history/peer"
)

// Takeover brings the blocks of single deployments to a server that runs. Their sources are
// registered afterwards: each stream goes on behind its mark.
//
//	replicas that have the deployment, in order --GET /admin/snapshot?model=…--> Recovery
//	the shelf                                   ------------------------------> Recovery
//
// Concurrency: all methods are safe for concurrent use.
type Takeover struct {
	Conductor *conductor.Conductor
	Client    *http.Client // asks replicas, as peer.PlainClient does
	Shelf     *Shelf       // nil is none
	// TTL is how long blocks stay whose source is not registered, 0 for ever.
	TTL time.Duration
	Log zerolog.Logger

	under sync.Map // scope.Deployment -> nil: those that are being brought
}

// errUnderWay is the error of Bring while another call brings the same deployment.
var errUnderWay = errors.New("the deployment is being taken over already")

// Bring brings back what the sources of a deployment hold, from the first of some replicas that
// has them, else from the shelf. Sources that are registered already, and run, take nothing. It
// returns the blocks and conductor.FromPeer or FromShelf, or "" if there was nothing; the error says
// why those that might have had it gave nothing.
func (t *Takeover) Bring(ctx context.Context, d scope.Deployment, from []string) (blocks int, origin string, err error) {
	if _, under := t.under.LoadOrStore(d, nil); under {
		return 0, "", errUnderWay
	}
	defer t.under.Delete(d)
	began := time.Now()
	var all []error
	var r *conductor.Recovery
	fresh := func() *conductor.Recovery {
		r = t.Conductor.Recover(t.TTL)
		r.Refill = true
		return r
	}
	done := func(origin, name string) (int, string, error) {
		t.Log.Info().Str("tenant", d.Tenant).Str("model", d.Model).Int("block_size", d.BlockSize).Str("from", name).Int("blocks", r.Blocks).
			Dur("took", time.Since(began)).Msg("took the blocks of a deployment over")
		return r.Blocks, origin, nil
	}
	for _, url := range from {
		err := peer.Fetch(ctx, t.Client, url, (peer.InAll-time.Since(began))/2, peer.DeploymentFormat(d), fresh())
		if err == nil {
			r.Done()
			return done(conductor.FromPeer, url)
		}
		r.Undo()
		if ctx.Err() != nil {
			return 0, "", ctx.Err()
		}
		all = append(all, fmt.Errorf("%s: %w", url, err))
	}
	if t.Shelf != nil {
		found, err := t.Shelf.Load(ctx, d, func() *conductor.Recovery {
			r := fresh()
			r.Origin = conductor.FromShelf
			return r
		})
		if found {
			return done(conductor.FromShelf, "the shelf")
		}
		if err != nil {
			all = append(all, fmt.Errorf("the shelf: %w", err))
		}
	}
	return 0, "", errors.Join(all...)
}
