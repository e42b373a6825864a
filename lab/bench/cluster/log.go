package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/events/log"
	"kvconductor/events/stream"
	"kvconductor/events/zmq"
	"kvconductor/lab/bench/ingest"
	"kvconductor/lab/harness"
	"kvconductor/store"
)

// LogReport compares three servers: one that follows engines, one that follows them and appends to
// logs, and one that follows the logs.
type LogReport struct {
	Sources int     `json:"sources"`
	Engine  LogRole `json:"engine"`
	Tail    LogRole `json:"tail"`
	Log     LogRole `json:"log"`
	// LagRate is the rate at which the lags were taken, in batches/s.
	LagRate    float64 `json:"lag_batches_per_sec"`
	AddedP50Ms float64 `json:"added_lag_p50_ms"`
	AddedP99Ms float64 `json:"added_lag_p99_ms"`

	// AppendedPerSec are batches that the tail appended, Dropped those for which the store was too slow.
	AppendedPerSec float64 `json:"appended_batches_per_sec"`
	Dropped        uint64  `json:"dropped_batches"`

	Leases LeaseReport `json:"leases"`
}

// LogRole is one of them. A block that is stored counts, and one that is removed.
type LogRole struct {
	BatchesPerSec float64 `json:"batches_per_sec"`
	BlocksPerSec  float64 `json:"blocks_per_sec"`
	Cores         float64 `json:"cpu_cores"`
	BatchesCore   float64 `json:"batches_per_sec_per_core"`
	BlocksCore    float64 `json:"blocks_per_sec_per_core"`
	LagP50Ms      float64 `json:"lag_p50_ms"` // at LagRate
	LagP99Ms      float64 `json:"lag_p99_ms"`
	Lost          uint64  `json:"batches_lost"`
	Unsynced      int     `json:"sources_not_synced"`
}

func (r *LogReport) table(w io.Writer) {
	for _, role := range []struct {
		name string
		of   *LogRole
	}{{"engine", &r.Engine}, {"tail", &r.Tail}, {"log", &r.Log}} {
		fmt.Fprintf(w, "%-6s %d sources: %.0f batches/s, %.2f M blocks/s, %.2f cores: %.0f batches/s and %.2f M blocks/s a core; lost %d, %d not synced\n",
			role.name, r.Sources, role.of.BatchesPerSec, role.of.BlocksPerSec/1e6, role.of.Cores, role.of.BatchesCore, role.of.BlocksCore/1e6, role.of.Lost, role.of.Unsynced)
	}
	fmt.Fprintf(w, "appended %.0f batches/s, %d were dropped\n", r.AppendedPerSec, r.Dropped)
	fmt.Fprintf(w, "lag at %.0f batches/s: engine p50 %.2f ms, p99 %.2f ms; log p50 %.2f ms, p99 %.2f ms; added p50 %.2f ms, p99 %.2f ms\n",
		r.LagRate, r.Engine.LagP50Ms, r.Engine.LagP99Ms, r.Log.LagP50Ms, r.Log.LagP99Ms, r.AddedP50Ms, r.AddedP99Ms)
	fmt.Fprintf(w, "%d silent sources, two replicas: %.3f cores, store %.3f cores\n", r.Leases.Sources, r.Leases.Cores, r.Leases.StoreCores)
}

// TailLoad is what the process of the tail follows.
type TailLoad struct {
	Store, Name string
	Ports       []string
	BlockSize   int
}

// log measures the logs. Servers go as fast as they can first. Lags are taken at Rate, and at half
// of what the slowest reached if that is less.
func (c *Config) log() (*LogReport, error) {
	r := &LogReport{Sources: c.Load.Sources}
	roles := []struct {
		name       string
		transports func([]string) (func(string) stream.Transport, func(), error)
		of         *LogRole
	}{{"engine", nil, &r.Engine}, {"tail", c.appends(r), &r.Tail}, {"log", c.follows, &r.Log}}
	slowest := 0.0
	for i, role := range roles {
		got, err := c.ingest(role.name, role.transports, 0)
		if err != nil {
			return nil, err
		}
		if *role.of = *got; i == 0 || got.BatchesPerSec < slowest {
			slowest = got.BatchesPerSec
		}
	}
	r.LagRate = min(slowest/2, c.Rate)
	for _, role := range roles {
		got, err := c.ingest(role.name, role.transports, r.LagRate)
		if err != nil {
			return nil, err
		}
		role.of.LagP50Ms, role.of.LagP99Ms = got.LagP50Ms, got.LagP99Ms
		role.of.Lost, role.of.Unsynced = role.of.Lost+got.Lost, role.of.Unsynced+got.Unsynced
	}
	r.AddedP50Ms, r.AddedP99Ms = r.Log.LagP50Ms-r.Engine.LagP50Ms, r.Log.LagP99Ms-r.Engine.LagP99Ms
	leases, err := c.leases(c.Leases)
	if err != nil {
		return nil, err
	}
	r.Leases = *leases
	return r, nil
}

// ingest measures one server. Rate is in batches/s of all sources, 0 for the highest.
func (c *Config) ingest(name string, transports func([]string) (func(string) stream.Transport, func(), error), rate float64) (*LogRole, error) {
	c.Progress.Say("%s", name)
	got, err := ingest.Run(ingest.Config{
		Load: c.Load, Rate: rate / float64(c.Load.Sources), Duration: c.Duration, FastOnly: rate == 0, Transports: transports, Publisher: c.Publisher, Progress: c.Progress,
	})
	if err != nil {
		return nil, err
	}
	return &LogRole{
		BatchesPerSec: got.BatchesPerSec, BlocksPerSec: got.BlocksPerSec, Cores: got.CPUCores,
		BatchesCore: got.BatchesPerSec / got.CPUCores, BlocksCore: got.BlocksPerSec / got.CPUCores,
		LagP50Ms: got.LagP50Ms, LagP99Ms: got.LagP99Ms, Lost: got.BatchesLost, Unsynced: got.Unsynced,
	}, nil
}

// appends returns what makes the transports of a tail in this process. The first one that ends
// tells how much it appended.
func (c *Config) appends(r *LogReport) func([]string) (func(string) stream.Transport, func(), error) {
	return func([]string) (func(string) stream.Transport, func(), error) {
		of, logs, end, err := replica(c.Store, rand.Text(), "tail", zmq.Transport{})
		begun := time.Now()
		return of, func() {
			if st := logs.Stats(); r.AppendedPerSec == 0 {
				r.AppendedPerSec, r.Dropped = float64(st.Entries)/time.Since(begun).Seconds(), st.Dropped
			}
			end()
		}, err
	}
}

// follows are transports that follow logs, whose tail is another process.
func (c *Config) follows(ports []string) (func(string) stream.Transport, func(), error) {
	load := TailLoad{Store: c.Store, Name: rand.Text(), Ports: ports, BlockSize: c.Load.BlockSize}
	tail, err := harness.Start("tail", c.Tail(load))
	if err != nil {
		return nil, nil, err
	}
	if _, err := tail.Line(); err != nil {
		tail.Stop()
		return nil, nil, err
	}
	of, _, end, err := replica(c.Store, load.Name, "follower", zmq.Transport{})
	if err != nil {
		tail.Stop()
		return nil, nil, err
	}
	return of, func() { end(); tail.Stop() }, nil
}

// replica returns the transports of a replica of a deployment.
func replica(url, name, id string, engine stream.Transport) (of func(string) stream.Transport, logs *log.Log, end func(), err error) {
	shared, err := store.Open(store.Config{URL: url, Name: name, Timeout: 5 * time.Second})
	if err != nil {
		return nil, nil, nil, err
	}
	logs = log.New(log.Config{
		Store: shared, ID: id, Bytes: 8 << 20, Age: time.Minute, Buffer: 256 << 20,
		Replicas: func() []log.Replica { return []log.Replica{{ID: "tail", Weight: 1}} },
	})
	of = func(endpoint string) stream.Transport {
		return logs.Source(log.SourceConfig{Key: endpoint, Engine: engine})
	}
	return of, logs, func() {
		logs.Close(context.Background())
		shared.Close()
	}, nil
}

// Tail runs the process of the tail: it prints a line once it has all leases, and ends with in.
func Tail(load TailLoad, in io.Reader, out io.Writer) error {
	of, logs, end, err := replica(load.Store, load.Name, "tail", zmq.Transport{})
	if err != nil {
		return err
	}
	defer end()
	k := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Transport: func(r conductor.Registration, _ bool) stream.Transport { return of(r.Endpoint) }})
	defer k.Close()
	for i, port := range load.Ports {
		err := k.Register(conductor.Registration{
			Endpoint: "tcp://127.0.0.1:" + port, Type: "vLLM", Model: "bench", Instance: strconv.Itoa(i), BlockSize: load.BlockSize,
		}, conductor.RegisterOptions{})
		if err != nil {
			return err
		}
	}
	for logs.Stats().Held < len(load.Ports) {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Fprintln(out, "ready")
	_, err = io.Copy(io.Discard, in)
	return err
}
