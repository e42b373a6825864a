package dynamo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"

	"example.com/conductor/internal/must"
)

// A fleet of 64 workers with 16,384 blocks each, in chains of 64. Every fourth chain
// begins with a prefix that all workers hold.
const (
	benchWorkers = 64
	benchChains  = 256
	benchLength  = 64
	benchBlocks  = benchWorkers * benchChains * benchLength
)

// benchDump writes what such a fleet's dump is.
func benchDump() []byte {
	var out bytes.Buffer
	rng := rand.New(rand.NewPCG(1, 2))
	shared := make([]uint64, benchLength/2)
	for i := range shared {
		shared[i] = rng.Uint64()
	}
	for w := range benchWorkers {
		names := make([]uint64, len(shared)) // an engine has one hash for a block
		for i := range names {
			names[i] = rng.Uint64()
		}
		for c := range benchChains {
			fmt.Fprintf(&out, `{"key":"m:default","block_size":16,"event":{"worker_id":%d,"storage_tier":"device",`+
				`"residency_domain":"worker","event":{"event_id":%d,`+
				`"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[`, w+1, w*benchChains+c)
			for i := range benchLength {
				local, name := rng.Uint64(), rng.Uint64()
				if c%4 == 0 && i < len(shared) {
					local, name = shared[i], names[i]
				}
				if i > 0 {
					out.WriteByte(',')
				}
				fmt.Fprintf(&out, `{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, name, local)
			}
			out.WriteString("]}},\"dp_rank\":0}}}\n")
		}
	}
	return out.Bytes()
}

// counter is a client that reads everything and keeps nothing.
type counter struct {
	header http.Header
	n      int
}

func (d *counter) Header() http.Header { return d.header }
func (d *counter) WriteHeader(int)     {}
func (d *counter) Write(p []byte) (int, error) {
	d.n += len(p)
	return len(p), nil
}

func BenchmarkRecover(b *testing.B) {
	dump := benchDump()
	b.SetBytes(int64(len(dump)))
	for b.Loop() {
		s := newServer(b, Config{})
		in := s.conductor.Sources().Snapshots().Recover(0)
		if err := (&loader{in: in, skip: func(string) {}, longest: longestValue}).lines(bytes.NewReader(dump)); err != nil ||
			in.Blocks != benchBlocks {
			b.Fatal(in.Blocks, err)
		}
		in.Done()
		b.StopTimer()
		s.conductor.Close()
		b.StartTimer()
	}
	b.ReportMetric(benchBlocks*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

func BenchmarkDump(b *testing.B) {
	s := newServer(b, Config{})
	in := s.conductor.Sources().Snapshots().Recover(0)
	must.Succeed(b, (&loader{in: in, skip: func(string) {}, longest: longestValue}).lines(bytes.NewReader(benchDump())))
	in.Done()
	for _, accept := range []string{"application/json", "application/x-ndjson"} {
		b.Run(accept, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest("GET", "/dump", nil)
				req.Header.Set("Accept", accept)
				to := &counter{header: make(http.Header)}
				s.handler.ServeHTTP(to, req)
				b.ReportMetric(float64(to.n)/benchBlocks, "B/block")
			}
			b.ReportMetric(benchBlocks*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		})
	}
}
