package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
	"example.com/conductor/redact"
)

const (
	// patience is how long a peer may take for pace bytes: walking a large index takes
	// time.
	patience = 30 * time.Second
	pace     = 16 << 10
	// dumpRoom is how many bytes a peer may send for each byte that the indexes may take. A block takes some
	// 20 bytes in an index, and 120 in a dump for each of its holders; in a snapshot it takes 17.
	dumpRoom = 32
)

// Format is how peers write their snapshots.
type Format struct {
	// Path is where a peer serves a snapshot, with its query; Accept the header of the request.
	Path, Accept string
	// Resumes says that a peer names a snapshot in its header ETag, and sends the rest of it for
	// the parameter id and a Range.
	Resumes bool
	// Reasons are those that Read calls skip with.
	Reasons []string
	// Read brings back the blocks of a snapshot of a content type. It calls skip for each
	// part that it leaves out, and returns an error for a snapshot that is not whole.
	Read func(body io.Reader, contentType string, into *ingest.Recovery, skip func(reason string)) error
}

// SnapshotPath is where a server sends snapshots to peers.
const SnapshotPath = "/admin/snapshot"

// OwnFormat is how peers of this program send snapshots.
func OwnFormat() Format {
	return Format{
		Path: SnapshotPath, Accept: history.MediaType, Resumes: true,
		Read: func(body io.Reader, _ string, into *ingest.Recovery, _ func(string)) error {
			_, err := history.Read(body, history.Reading{Into: into, MaxHead: history.MaxHead})
			return err
		},
	}
}

// DeploymentFormat is OwnFormat for the sources of one deployment. Sources of others, which a peer that does
// not know the query sends, are left out.
func DeploymentFormat(d scope.Deployment) Format {
	f := OwnFormat()
	f.Path += "?" + url.Values{"tenant_id": {d.Tenant}, "model": {d.Model}, "block_size": {strconv.Itoa(d.BlockSize)}}.Encode()
	f.Read = func(body io.Reader, _ string, into *ingest.Recovery, _ func(string)) error {
		_, err := history.Read(body, history.Reading{Into: into, MaxHead: history.MaxHead, Sources: history.Only(d)})
		return err
	}
	return f
}

// Replicas are servers that a deployment is taken over from.
type Replicas struct {
	Client *http.Client // see PlainClient
	URLs   []string     // in the order in which they are asked
}

// LoadDeployment implements history.DeploymentPlace.
func (r Replicas) LoadDeployment(ctx context.Context, loader *history.Loader, d scope.Deployment) (conductor.Progress, error) {
	end := time.Now().Add(inAll)
	var all []error
	for _, url := range r.URLs {
		fetch := fetch{client: r.Client, me: rand.Text(), formats: []Format{DeploymentFormat(d)}, within: time.Until(end) / 2}
		progress, err := fetch.loadFrom(ctx, url, loader)
		if err == nil || ctx.Err() != nil {
			return progress, err
		}
		all = append(all, fmt.Errorf("%s: %w", redact.URL(url), err))
	}
	return conductor.Progress{}, errors.Join(all...)
}

// fetch loads the snapshot of one peer.
type fetch struct {
	client  *http.Client
	me      string   // see Header
	formats []Format // the first one that the peer knows is used
	within  time.Duration
	skip    func(reason string, parts int) // counts parts that are left out; nil counts nothing
	begin   func(*history.Loading)         // hears of each load; nil hears nothing
}

// loadFrom loads the snapshot of the peer at a URL.
func (f *fetch) loadFrom(ctx context.Context, url string, loader *history.Loader) (progress conductor.Progress, err error) {
	snapshot := history.Snapshot{Origin: ingest.FromPeer, Name: redact.URL(url), Slow: "still recovering", Field: "peer"}
	for i := range f.formats {
		progress, err = loader.Load(snapshot, func(l *history.Loading) error {
			if f.begin != nil {
				f.begin(l)
			}
			return f.read(ctx, url, &f.formats[i], l)
		})
		if !errors.Is(err, errUnknown) {
			break
		}
	}
	return progress, err
}

// read reads the snapshot of a peer in a format. It gives up a peer that is slower than pace bytes in patience, does
// not end within f.within, or sends more than an index here can have.
func (f *fetch) read(ctx context.Context, peer string, format *Format, l *history.Loading) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it gave less than %d bytes in %s", pace, patience)) })
	defer silent.Stop()
	endless := time.AfterFunc(f.within, func() { cancel(fmt.Errorf("it did not end within %s", f.within.Round(time.Second))) })
	defer endless.Stop()
	room := int64(math.MaxInt64)
	if most := l.Into.Room(); most > 0 {
		room = dumpRoom * most
	}
	from := &download{
		ctx: ctx, client: f.client, me: f.me, url: strings.TrimRight(peer, "/") + format.Path, accept: format.Accept,
		resumes: format.Resumes,
	}
	res, err := from.open("")
	if err != nil {
		return causeOf(ctx, err)
	}
	defer from.close()
	if err := answerError(res, f.me); err != nil {
		return err
	}
	if res.ContentLength > room {
		return fmt.Errorf("it announces %d bytes, more than %d for each byte of index.max_bytes_total", res.ContentLength, dumpRoom)
	}
	silent.Reset(patience)
	l.BeginBytes(max(res.ContentLength, 0))
	recent, total := 0, int64(0)
	body := l.Reader(ctx, from, func(n int) {
		if total += int64(n); total > room {
			cancel(fmt.Errorf("it sent more than %d bytes for each byte of index.max_bytes_total", dumpRoom))
		}
		if recent += n; recent >= pace {
			silent.Reset(patience)
			recent = 0
		}
	})
	skip := f.skip
	if skip == nil {
		skip = func(string, int) {}
	}
	err = format.Read(body, res.Header.Get("Content-Type"), l.Into, func(reason string) { skip(reason, 1) })
	if err == nil && l.Into.Refused > 0 {
		skip(SkipRefused, l.Into.Refused)
	}
	return causeOf(ctx, err)
}

// causeOf returns the cause of the end of ctx in place of the error that followed from it.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
