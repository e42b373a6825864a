package admin_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/history"

	historypeer "example.com/conductor/history/peer"
	"example.com/conductor/internal/must"
)

// snapshotPeer is a server with blocks, and its address.
func snapshotPeer(t *testing.T, blocks int) (*conductor.Conductor, string) {
	t.Helper()
	gate := make(chan struct{})
	c := conductor.New(conductor.Options{
		HashSeed: 1337, Gate: gate, Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)},
	})
	t.Cleanup(c.Close)
	r := c.Sources().Snapshots().Recover(0)
	reg := registration.Registration{
		Instance: "a", Model: "m", BlockSize: 16, Type: registration.TypeVLLM, Tenant: "default", Endpoint: "tcp://engine:5557",
	}
	must.Succeed(t, r.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: 41, Print: 7}}))
	words := make([]uint64, blocks)
	for i := range words {
		words[i] = uint64(i+1) * 0x9e3779b97f4a7c15
	}
	must.Succeed(t, r.Stored(&ingest.Stored{
		Source: reg, Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16, Salt: "pepper",
		Stretch: &ingest.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words,
	}))
	r.Done()
	close(gate)
	s := httptest.NewServer(admin.New(c, admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20}, Snapshots: new(historypeer.Spool),
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}))
	t.Cleanup(s.Close)
	return c, s.URL
}

// fragile is a transport whose connections break after some bytes.
type fragile struct {
	after  int
	ranges []string // of the requests
}

func (f *fragile) RoundTrip(r *http.Request) (*http.Response, error) {
	f.ranges = append(f.ranges, r.Header.Get("Range"))
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		res.Body = &breaking{res.Body, f.after}
	}
	return res, err
}

type breaking struct {
	io.ReadCloser
	left int
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("connection reset")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// A replica gets all that a peer holds, also over connections that break.
func TestSnapshotOfAPeer(t *testing.T) {
	_, url := snapshotPeer(t, 20_000)
	gate := make(chan struct{})
	defer close(gate)
	c := conductor.New(conductor.Options{HashSeed: 1337, Gate: gate, Log: zerolog.Nop()})
	t.Cleanup(c.Close)
	broken := &fragile{after: 100_000}
	r := historypeer.New(historypeer.Config{
		Peers: []string{url}, Formats: []historypeer.Format{historypeer.OwnFormat()}, Client: &http.Client{Transport: broken},
		Log: zerolog.Nop(),
	})
	r.Restore(t.Context(), &history.Loader{Conductor: c, TTL: time.Minute, Log: zerolog.Nop()})
	st := r.Status()
	if all := c.Services(); st.State != historypeer.Done || st.Blocks != 20_000 || len(all) != 1 || all[0].Blocks != 20_000 ||
		*all[0].LastSeq != 41 || all[0].HistoryFrom != ingest.FromPeer {
		t.Errorf("%+v, %+v", st, all)
	}
	if len(broken.ranges) < 3 || broken.ranges[0] != "" || broken.ranges[1] != "bytes=100000-" {
		t.Errorf("%q", broken.ranges)
	}
}

// A client may take a snapshot compressed, in parts, or one that is gone.
func TestSnapshotForms(t *testing.T) {
	_, url := snapshotPeer(t, 1000)
	f := func(path, header, value string, status int) (*http.Response, []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, url+path, nil)
		must.Succeed(t, err)
		req.Header.Set("Accept-Encoding", "identity")
		if header != "" {
			req.Header.Set(header, value)
		}
		res, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		must.Succeed(t, err)
		if res.StatusCode != status {
			t.Errorf("%s %s %s: %s, want %d: %.100s", path, header, value, res.Status, status, data)
		}
		return res, data
	}
	res, whole := f("/admin/snapshot", "", "", 200)
	id := strings.Trim(res.Header.Get("ETag"), `"`)
	if res.Header.Get("Content-Type") != history.MediaType || res.Header.Get("Conductor-Blocks") != "1000" ||
		!bytes.Contains(whole, []byte("pepper")) {
		t.Errorf("%v", res.Header)
	}
	if _, rest := f("/admin/snapshot?id="+id, "Range", "bytes=1000-", 206); !bytes.Equal(rest, whole[1000:]) {
		t.Error("the rest is another one")
	}
	_, packed := f("/admin/snapshot?id="+id, "Accept-Encoding", "br, gzip;q=0.5", 200)
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	must.Succeed(t, err)
	if text, err := io.ReadAll(unpacked); err != nil || !bytes.Equal(text, whole) {
		t.Errorf("gzip: %v", err)
	}
	_, packed = f("/admin/snapshot?id="+id, "Accept-Encoding", "gzip;q=0, zstd", 200)
	z, err := zstd.NewReader(bytes.NewReader(packed))
	must.Succeed(t, err)
	if text, err := io.ReadAll(z); err != nil || !bytes.Equal(text, whole) {
		t.Errorf("zstd: %v", err)
	}
	f("/admin/snapshot?id=1", "", "", 410)
	f("/admin/snapshot?id=x", "", "", 400)
}

// A peer may ask for one deployment.
func TestSnapshotOfADeployment(t *testing.T) {
	c, url := snapshotPeer(t, 1000)
	must.Succeed(t, c.Register(registration.Registration{Instance: "a", Model: "m", BlockSize: 16, Type: registration.TypeVLLM,
		Tenant:   "default",
		Endpoint: "tcp://engine:5557"}, ingest.RegisterOptions{AnyEndpoint: true}))
	must.Succeed(t, c.Register(registration.Registration{Instance: "b", Model: "other", BlockSize: 16, Type: registration.TypeVLLM,
		Endpoint: "inproc://nobody"}, ingest.RegisterOptions{AnyEndpoint: true}))
	f := func(query string, status int, want string) string {
		t.Helper()
		res, err := http.Get(url + historypeer.SnapshotPath + query)
		must.Succeed(t, err)
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		must.Succeed(t, err)
		if res.StatusCode != status || !strings.Contains(string(data), want) {
			t.Errorf("%s: %s %.200s", query, res.Status, data)
		}
		return res.Header.Get("Conductor-Blocks") + " " + res.Header.Get("ETag")
	}
	f("?model=m", 400, `"field":"block_size"`)
	f("?block_size=16", 400, `"field":"model"`)
	f("?tenant_id=default", 400, `"field":"model"`)
	f("?model=m&block_size=many", 400, `"field":"block_size"`)
	f("?model=m&block_size=32", 404, "no source of this deployment")
	f("?model=m&block_size=16&tenant_id=other", 404, "no source of this deployment")
	one := f("?model=m&block_size=16", 200, "pepper")
	empty := f("?model=other&block_size=16", 200, "inproc://nobody")
	if !strings.HasPrefix(one, "1000 ") || !strings.HasPrefix(empty, "0 ") {
		t.Errorf("%q, %q", one, empty)
	}
	for _, got := range []string{one, empty} { // both are kept
		f("?id="+strings.Trim(strings.Fields(got)[1], `"`), 200, "KVSNAP")
	}
}
