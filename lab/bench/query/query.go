// Package query measures the way of a prompt from another process's socket to its
// answer: real connections, the real server, an index that is loaded through real
// publishers.
//
//	this process                                        conductor serve
//	publishers, silent while it is measured ==========> sources --> index
//	closed loop, one prompt a connection at             |
//	a time, bytes rendered before  ==== loopback ====> handler
//	       ^                                             |
//	       +--- processor time by /proc, allocations by /metrics
//
// The index holds families of blocks. Every prompt begins with the blocks of a family,
// which a few instances hold; no instance holds the rest. There are many more blocks than
// a processor caches, and many prompts, so neither the index nor a body is warm when its
// turn comes.
//
// To compare it, the same prompts are asked in turns of another process with the same blocks: of its index
// by way of encoding/json, and of a handler that does nothing but read the bytes. Both processes
// share a processor, and only one of them has requests at a time.
package query

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
)

// codecs a prompt may be sent in.
const (
	JSON         = "json"          // an array of numbers
	JSONBase64   = "json-b64"      // token_ids_b64, little-endian u32
	MsgpackBin   = "msgpack-bin"   // the same bytes in a bin
	MsgpackArray = "msgpack-array" // an array of integers
)

// codecs are those of tokens over HTTP.
var codecs = []string{JSON, JSONBase64, MsgpackBin, MsgpackArray}

// Further codecs: a prompt as the engine's hashes of its blocks, and gRPC.
const (
	jsonHashes = "json-hashes"     // POST /query_by_hash
	expectedOf = "-expected"       // behind a codec of tokens: a query that asks for expected blocks, too
	routedOf   = "-routed"         // likewise: a report that the prompt goes to an instance
	listOf     = "-list"           // behind that: a list of reports, see listed
	candidates = "json-candidates" // POST /candidates
	answerOf   = "json-answer"     // a report by the id of an answer; with listOf a list of them
	grpcTokens = "grpc-tokens"     // kvconductor.v1.Conductor/Query
	grpcHashes = "grpc-hashes"     // the same by hashes
	grpcRouter = "grpc-router"     // kv_indexer.v1.KVIndexer/MatchExternalKvPrefix
)

// AllCodecs are all there are.
var AllCodecs = append(slices.Clone(codecs), jsonHashes, grpcTokens, grpcHashes, grpcRouter,
	JSON+expectedOf, JSON+routedOf, JSON+routedOf+listOf, candidates, answerOf, answerOf+listOf, MsgpackBin+expectedOf, MsgpackBin+routedOf)

// Load is the shape of index and prompts; both processes know it.
type Load struct {
	Tokens    int     // of a prompt
	BlockSize int     // tokens
	Workers   int     // instances
	Holders   int     // instances that hold the beginning of a prompt
	Blocks    int     // indexed at least, each counted once
	Hit       float64 // part of a prompt that is held
	// Window, if above 0, gives each instance a second group of blocks, with a sliding window of so many tokens. Of that it holds
	// what vLLM keeps: the window before the end of a family.
	Window int
}

// Config describes the load and how the client asks.
type Config struct {
	Load
	Codec       string
	Connections int
	Cores       int           // processors of the server; the client has as many of the others, or shares these if there are none
	Duration    time.Duration // of the measured window, warm-up not counted
	Other       string        // another codec that is measured in turns, "" for none
	Reports     int           // made before, 10,000 a second
	NewTokens   int           // of a report that no other one has
	Baseline    bool          // measure encoding/json too
	Reading     bool          // and a handler that only reads bodies
	HTTP2       bool          // cleartext, without an upgrade
	// Profile is a file for a CPU profile of the server over the first window, 60 s at most; "" for none.
	Profile   string
	Collector string        // URL that traces go to
	Traces    float64       // part of the queries that are traced
	Slow      time.Duration // log.slow_query of the server
	// Share, if above 0, asks for a second window at this part of the rate of the first, each request at its time.
	Share float64
	// Batches are published a second while it is measured.
	Batches int
	// Changes are registrations and unregistrations a second while it is measured. The server writes them to its disk.
	Changes int
	// Snapshot lets the server write snapshots during the window of Share, two or more.
	Snapshot bool
	// Trace is a file for an execution trace of the server over a part of the window of Share; "" for none.
	Trace string
	// Server is "serve" with a configuration file. Compared runs Compared in another process.
	Server   func(file string) *exec.Cmd
	Compared func() *exec.Cmd
	// Publishers runs a Churn in another process.
	Publishers func(Churn) *exec.Cmd
	Progress   harness.Progress
}

// Check returns the first error of a load.
func (l *Load) Check() error {
	for _, f := range []struct {
		name string
		n    int
	}{
		{"tokens", l.Tokens}, {"block size", l.BlockSize}, {"workers", l.Workers}, {"holders", l.Holders}, {"blocks", l.Blocks},
	} {
		if f.n < 1 {
			return fmt.Errorf("%s is %d, must be at least 1", f.name, f.n)
		}
	}
	switch {
	case l.Tokens < l.BlockSize:
		return fmt.Errorf("tokens is %d, less than the %d of a block", l.Tokens, l.BlockSize)
	case l.Holders > l.Workers:
		return fmt.Errorf("holders is %d, must be at most the %d workers", l.Holders, l.Workers)
	case l.Window < 0:
		return fmt.Errorf("window is %d, must not be negative", l.Window)
	case !(l.Hit >= 0 && l.Hit <= 1):
		return fmt.Errorf("hit is %v, must be between 0 and 1", l.Hit)
	}
	return nil
}

func (c *Config) checkConfig() error {
	if err := c.Load.Check(); err != nil {
		return err
	}
	switch {
	case !slices.Contains(AllCodecs, c.Codec):
		return fmt.Errorf("codec is %q, must be one of %q", c.Codec, AllCodecs)
	case c.Other != "" && !slices.Contains(AllCodecs, c.Other):
		return fmt.Errorf("other is %q, must be one of %q", c.Other, AllCodecs)
	case (c.Baseline || c.Reading) && !slices.Contains(codecs, c.Codec):
		return fmt.Errorf("baseline and reading take tokens over HTTP, not %s", c.Codec)
	case c.Reports < 0:
		return fmt.Errorf("reports is %d, must not be negative", c.Reports)
	case c.Reports > 0 && (c.NewTokens < c.BlockSize || c.NewTokens/c.BlockSize > mostNewBlocks):
		return fmt.Errorf("new tokens is %d, must be from %d to %d: a report has 1 to %d new blocks, because %d of them go in one request",
			c.NewTokens, c.BlockSize, mostNewBlocks*c.BlockSize, mostNewBlocks, reportList)
	case c.Cores < 1:
		return fmt.Errorf("cores is %d, must be at least 1", c.Cores)
	case !(c.Share >= 0 && c.Share < 1):
		return fmt.Errorf("load is %v, must be from 0 to below 1", c.Share)
	case c.Share > 0 && (c.HTTP2 || isGRPC(c.Codec)):
		return errors.New("load is measured over HTTP/1.1")
	case c.Share == 0 && (c.Snapshot || c.Trace != ""):
		return errors.New("snapshot and trace are about the window of load, which is 0")
	case c.Batches < 0:
		return fmt.Errorf("batches is %d, must not be negative", c.Batches)
	case c.Changes < 0 || c.Changes > 10_000:
		return fmt.Errorf("changes is %d, must be from 0 to 10000", c.Changes)
	case c.Connections < 1:
		return fmt.Errorf("connections is %d, must be at least 1", c.Connections)
	case c.Duration <= 0:
		return errors.New("duration must be above zero")
	case c.Trace != "" && c.Duration < time.Second:
		return fmt.Errorf("duration is %v, must be at least 1s with a trace, because the server traces whole seconds", c.Duration)
	}
	return nil
}

// heldBlocks returns how many blocks of a prompt are held.
func (l *Load) heldBlocks() int { return int(math.Round(l.Hit * float64(l.Tokens/l.BlockSize))) }

// chainLength returns the blocks of a family: the held blocks of a prompt, or all blocks of a
// prompt if none is held.
func (l *Load) chainLength() int {
	if n := l.heldBlocks(); n > 0 {
		return n
	}
	return l.Tokens / l.BlockSize
}

func (l *Load) families() int { return (l.Blocks + l.chainLength() - 1) / l.chainLength() }

// vocabulary is that of a usual model: most ids have six digits.
const vocabulary = 151_936

// Streams of random numbers.
const (
	ofPrompts = 1 + iota
	ofOthers
	ofHolders
	ofChurn
	ofGaps
)

// appendPrompt appends the tokens of the prompt that begins as a family does.
func (l *Load) appendPrompt(dst []uint32, family int) []uint32 {
	return randomTokens(dst, ofPrompts, family, l.Tokens)
}

// appendStored appends the tokens a family has in the index.
func (l *Load) appendStored(dst []uint32, family int) []uint32 {
	if l.heldBlocks() == 0 { // of prompts that no client asks for
		return randomTokens(dst, ofOthers, family, l.chainLength()*l.BlockSize)
	}
	return randomTokens(dst, ofPrompts, family, l.chainLength()*l.BlockSize)
}

func randomTokens(dst []uint32, stream uint64, family, n int) []uint32 {
	r := rand.New(rand.NewPCG(stream, uint64(family)))
	for range n {
		dst = append(dst, r.Uint32N(vocabulary))
	}
	return dst
}

// holdersOf returns the instances that hold a family.
func (l *Load) holdersOf(family int) []int {
	return rand.New(rand.NewPCG(ofHolders, uint64(family))).Perm(l.Workers)[:l.Holders]
}

// instanceName returns the name of the i-th; names sort as numbers do, and are URLs for routers.
func instanceName(i int) string { return fmt.Sprintf("http://i%05d:1", i) }

// model is the one that is asked for.
const model = "bench"
