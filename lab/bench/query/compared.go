package query

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/config"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/memory"
	"example.com/conductor/lab/harness"
)

// Compared is the process with the handlers that the server is compared with. It holds an index of its
// own, with the same blocks.
type Compared struct{ Load }

// hello is the first line of the process, which is ready then.
type hello struct {
	Address string `json:"address"`
}

// usage is the use of processor and memory by a process so far.
type usage struct {
	CPU     time.Duration `json:"cpu_ns"`
	Objects uint64        `json:"objects"`
	Bytes   uint64        `json:"bytes"`
	RSS     int64         `json:"rss_bytes"` // the most so far
}

// orderUsage is the order of the parent, one a line. Each is answered by a usage.
const orderUsage = "usage"

// Serve loads the index, says hello on out and obeys the orders on in until in ends. It
// returns an error if in ends before the index is loaded: the parent is gone then. It
// prints lines of JSON only.
func (s *Compared) Serve(in io.Reader, out io.Writer) error {
	if _, core, other := harness.Allowed(); core != other {
		if err := harness.Pin(core); err != nil {
			return err
		}
	}
	defer memory.Keep(zerolog.Nop())()
	cfg := config.Default()
	limits := wire.DefaultLimits
	limits.MaxPayload = int(cfg.Limits.MaxPayload)
	k := conductor.New(conductor.Options{HashSeed: cfg.Hash.Seed, MaxSources: s.Workers, Log: zerolog.Nop(), Stream: stream.Config{
		Transport: zmq.Transport{}, QueueBytes: 64 << 20,
		Decode: func(batch []byte) (events.Batch, error) { return wire.Decode(batch, limits) },
	}})
	defer k.Close()
	orders := readOrders(in)
	loaded := make(chan error, 1)
	var end func()
	go func() {
		var err error
		end, err = s.preloadBlocks(inProcess{k})
		loaded <- err
	}()
	select {
	case err := <-loaded:
		if err != nil {
			return err
		}
	case <-orders: // before the hello there are none
		return errors.New("the bench ended before the index was filled")
	}
	defer end()
	handler, err := s.newHandler(k, cfg.Limits.MaxBody)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	protocols := new(http.Protocols) // those of the server
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	defer server.Close()
	go server.Serve(ln)
	debug.FreeOSMemory() // queries shall not collect the garbage of the preload
	runtime.GOMAXPROCS(1)
	e := json.NewEncoder(out)
	if err := e.Encode(hello{ln.Addr().String()}); err != nil {
		return err
	}
	for order := range orders {
		if order != orderUsage {
			return fmt.Errorf("order %q is not known", order)
		}
		if err := e.Encode(readUsage()); err != nil {
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

// compared is that process as its parent sees it.
type compared struct {
	hello
	*harness.Process
}

// startCompared runs the process until it can be asked.
func startCompared(cmd *exec.Cmd) (*compared, error) {
	p, err := harness.Start("comparing", cmd)
	if err != nil {
		return nil, err
	}
	c := &compared{Process: p}
	if err := c.readLine(&c.hello); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *compared) readLine(v any) error {
	line, err := c.Line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("the comparing process says %q: %w", line, err)
	}
	return nil
}

// beginWindow implements meter.
func (c *compared) beginWindow() (u usage, err error) {
	if _, err := fmt.Fprintln(c, orderUsage); err != nil {
		return u, fmt.Errorf("the comparing process is gone: %w", err)
	}
	return u, c.readLine(&u)
}

// endWindow implements meter.
func (c *compared) endWindow() (usage, error) { return c.beginWindow() }
