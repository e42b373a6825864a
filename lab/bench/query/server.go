package query

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"time"

	"kvconductor/conductor"
	"kvconductor/lab/harness"
)

// Serving is the serving process's part.
type Serving struct {
	Load
	Compare bool   // open the port of the handlers to compare with
	Profile string // file for CPU profiles, "" for none

	Collector string        // URL that traces go to, "" for none
	Traces    float64       // part of the queries that are traced
	Slow      time.Duration // log.slow_query

	Conductor *conductor.Conductor `json:"-"`
	Address   string               `json:"-"` // of the measured server, which runs already
	GRPC      string               `json:"-"` // of its listener of gRPC
	MaxBody   int64                `json:"-"` // bound of the handlers to compare with, as the server has it
}

// hello is the first line of the serving process, which is ready then.
type hello struct {
	Address    string  `json:"address"`
	GRPC       string  `json:"grpc"`
	Compared   string  `json:"compared"` // address of the second port
	IndexBytes int     `json:"index_bytes"`
	Preload    float64 `json:"preload_seconds"`
	Pinned     string  `json:"pinned"` // why it is not pinned, "" if it is
}

// usage is the use of processor and memory by the serving process so far.
type usage struct {
	CPU     time.Duration `json:"cpu_ns"`
	Objects uint64        `json:"objects"`
	Bytes   uint64        `json:"bytes"`
	RSS     int64         `json:"rss_bytes"` // the most so far
	Failed  string        `json:"failed,omitempty"`
}

// Orders of the parent, one a line. Each is answered by a usage.
const (
	orderUsage   = "usage"
	orderProfile = "profile" // begin, or go on no more
)

// Serve loads the index, says hello on out and obeys the orders on in until in ends. It
// returns an error if in ends before the index is loaded: the parent is gone then. It
// prints lines of JSON only.
func (s *Serving) Serve(in io.Reader, out io.Writer) error {
	begun := time.Now()
	orders := readOrders(in)
	loaded := make(chan error, 1)
	var end func()
	go func() {
		var err error
		end, err = s.preload(s.Conductor)
		loaded <- err
	}()
	select {
	case err := <-loaded:
		if err != nil {
			return err
		}
	case <-orders: // before the hello there are none
		return errors.New("nobody waits for the index any more")
	}
	defer end()
	h := hello{Address: s.Address, GRPC: s.GRPC, IndexBytes: s.Conductor.IndexBytes()}
	if s.Compare {
		handler, err := s.compared()
		if err != nil {
			return err
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		h.Compared = ln.Addr().String()
		protocols := new(http.Protocols) // those of the server
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Handler: handler, Protocols: protocols}
		defer server.Close()
		go server.Serve(ln)
	}
	debug.FreeOSMemory() // queries shall not collect the garbage of the preload
	runtime.GOMAXPROCS(1)
	h.Pinned = "there are no two processors to choose from"
	if _, core, other := harness.Allowed(); core != other {
		h.Pinned = ""
		if err := harness.Pin(core); err != nil {
			h.Pinned = err.Error()
		}
	}
	h.Preload = time.Since(begun).Seconds()
	e := json.NewEncoder(out)
	if err := e.Encode(h); err != nil {
		return err
	}
	var (
		profile *os.File
		err     error
	)
	defer func() {
		if profile != nil {
			pprof.StopCPUProfile()
			profile.Close()
		}
	}()
	for order := range orders {
		u := readUsage()
		switch order {
		case orderUsage:
		case orderProfile:
			if profile != nil {
				pprof.StopCPUProfile()
				err = profile.Close()
				profile = nil
			} else if profile, err = os.Create(s.Profile); err == nil {
				err = pprof.StartCPUProfile(profile)
			}
			if err != nil {
				u.Failed = err.Error()
			}
		default:
			return fmt.Errorf("order %q is not known", order)
		}
		if err := e.Encode(u); err != nil {
			return err
		}
	}
	return nil
}

// readOrders reads lines until they end.
func readOrders(in io.Reader) <-chan string {
	orders := make(chan string)
	go func() {
		defer close(orders)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			orders <- lines.Text()
		}
	}()
	return orders
}

// readUsage reads the use of this process. Small objects that the runtime packs together
// count one by one.
func readUsage() usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return usage{
		CPU:     harness.CPU(),
		Objects: samples[0].Value.Uint64() + samples[1].Value.Uint64(),
		Bytes:   samples[2].Value.Uint64(),
		RSS:     harness.Peak(),
	}
}
