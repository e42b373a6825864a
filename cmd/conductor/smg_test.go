package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	pb "kvconductor/api/radixindex/v1"
	"kvconductor/index/hash"
	"kvconductor/internal/must"
)

const radixOn = "experimental: {radix_index: true}\n"

// radixQuery is a query of a gateway for the blocks of a prompt.
func radixQuery(id uint64, tokens []uint32) *pb.Query {
	return &pb.Query{
		QueryId: id, ContentHashes: hash.Default().Locals(nil, tokens, recordedBlock),
		Keyspace: &pb.Keyspace{Model: "m", SymbolKind: pb.SymbolKind_SYMBOL_KIND_TOKENS, BlockSize: recordedBlock, HashScheme: 1},
	}
}

// exchanged returns the answer to one query of a stream.
func exchanged(t *testing.T, stream grpc.BidiStreamingClient[pb.Query, pb.Match], q *pb.Query) *pb.Match {
	t.Helper()
	must.Succeed(t, stream.Send(q))
	match, err := stream.Recv()
	must.Succeed(t, err)
	if match.QueryId != q.QueryId {
		t.Errorf("query %d has the answer to %d", q.QueryId, match.QueryId)
	}
	return match
}

func scoresOf(match *pb.Match) string {
	all := []string{}
	for _, s := range match.Scores {
		if !s.EventFed || len(s.Intervals) != 1 || s.Intervals[0].Start != 0 || s.Intervals[0].End != s.MatchedBlocks {
			all = append(all, "bad "+s.String())
		}
		all = append(all, fmt.Sprintf("%s %d/%d", s.Holder, s.MatchedBlocks, s.TotalBlocks))
	}
	return strings.Join(all, ", ")
}

// TestRadixIndex asks as a gateway of smg does. Answers to random prompts are those of Dynamo's
// POST /query_by_hash.
func TestRadixIndex(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	fleet := map[string]*ruledEngine{"http://10.0.0.7:8000": nil, "10.0.0.8:8000": nil, "unreachable": nil}
	text := radixOn + "limits: {max_tokens: 64, max_body: 64KiB}\nsources:\n"
	for name := range fleet {
		e := newRuledEngine(t, name, 0)
		fleet[name] = e
		text += explainSource(e, "vLLM", "m", "")
	}
	p, address := grpcProcess(t, text)
	const depth, choices = 8, 3
	path := func() (blocks []int) { // numbers of the nodes of a tree
		at := 1
		for range depth {
			at = at*choices + random.IntN(choices)
			blocks = append(blocks, at)
		}
		return blocks
	}
	tokens := func(blocks []int) (all []uint32) {
		for _, b := range blocks {
			for i := range recordedBlock {
				all = append(all, uint32(b%choices*100+i))
			}
		}
		return all
	}
	for _, name := range slices.Sorted(maps.Keys(fleet)) {
		for range 30 {
			blocks := path()[:1+random.IntN(depth)]
			event := map[string]any{"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": nil, "token_ids": tokens(blocks), "block_size": recordedBlock, "medium": []string{"GPU", "GPU", "CPU", "DISK"}[random.IntN(4)]}
			fleet[name].publish(event)
			if random.IntN(3) == 0 {
				fleet[name].publish(map[string]any{"type": "BlockRemoved", "medium": event["medium"], "block_hashes": blocks[len(blocks)-1:]})
			}
		}
	}
	for _, e := range fleet {
		e.settled(p)
	}
	ctx := inTime(t)
	conn := dialed(t, address, "", nil)
	stream, err := pb.NewRadixIndexClient(conn).Subscribe(ctx)
	must.Succeed(t, err)
	matched := 0
	for i := range uint64(200) {
		q := radixQuery(i, tokens(path()))
		var byHash struct {
			Instances map[string]struct {
				Longest int `json:"longest_matched"`
			} `json:"instances"`
		}
		signed := make([]int64, len(q.ContentHashes))
		for i, h := range q.ContentHashes {
			signed[i] = int64(h)
		}
		answer := post(t, p.url+"/dynamo/v1/query_by_hash", string(asJSON(map[string]any{"model_name": "m", "block_hashes": signed})), 200)
		must.Succeed(t, json.Unmarshal([]byte(answer), &byHash))
		got, want := make(map[string]int), make(map[string]int)
		for name, row := range byHash.Instances {
			if name != "unreachable" {
				want["http://"+strings.TrimPrefix(name, "http://")] = row.Longest / recordedBlock
			}
		}
		longest := uint32(depth)
		for _, s := range exchanged(t, stream, q).Scores {
			if s.MatchedBlocks > longest || s.TotalBlocks == 0 || !s.EventFed || len(s.Intervals) != 1 || s.Intervals[0].Start != 0 || s.Intervals[0].End != s.MatchedBlocks {
				t.Errorf("query %d: %v", i, s)
			}
			longest = s.MatchedBlocks
			got[s.Holder] = int(s.MatchedBlocks)
			matched++
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("query %d: %v, by hash %s", i, got, answer)
		}
	}
	if matched < 200 {
		t.Errorf("only %d holders of 200 prompts", matched)
	}

	// Many at once have their answers in order. Those that are wrong have no scores.
	const many = 500
	go func() {
		for i := range uint64(many) {
			q := radixQuery(i, tokens(path()))
			switch i % 5 {
			case 1:
				q.ContentHashes = make([]uint64, 65)
			case 2:
				q.Keyspace = nil
			case 3:
				q.Keyspace.Model = "other"
			case 4:
				q.Keyspace.HashScheme, q.Keyspace.SymbolKind = 0, 0
			}
			stream.Send(q)
		}
		stream.CloseSend()
	}()
	for i := range uint64(many) {
		match, err := stream.Recv()
		must.Succeed(t, err)
		if match.QueryId != i || i%5 > 0 && i%5 < 4 && len(match.Scores) > 0 {
			t.Fatalf("answer %d is %v", i, match)
		}
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("the stream ends with %v", err)
	}
	_, metrics := get(p.url + "/metrics")
	for _, line := range []string{`conductor_grpc_messages_total{code="OK",rpc="/radix_index.RadixIndex/Subscribe"} 600`,
		`conductor_grpc_messages_total{code="InvalidArgument",rpc="/radix_index.RadixIndex/Subscribe"} 100`,
		`conductor_grpc_requests_total{code="OK",rpc="/radix_index.RadixIndex/Subscribe"} 1`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}

	// Blocks have no bytes, which ends no stream.
	bytes := radixQuery(7, recordedTokens(2))
	bytes.Keyspace.SymbolKind = pb.SymbolKind_SYMBOL_KIND_BYTES
	mixed, err := pb.NewRadixIndexClient(conn).Subscribe(ctx)
	must.Succeed(t, err)
	if got := exchanged(t, mixed, bytes); len(got.Scores) > 0 {
		t.Errorf("of bytes: %v", got)
	}
	exchanged(t, mixed, radixQuery(8, recordedTokens(2)))

	// Other hashes end the stream.
	for _, wrong := range []func(*pb.Query){
		func(q *pb.Query) { q.Keyspace.HashScheme = 2 },
		func(q *pb.Query) { q.Keyspace.SymbolKind = 9 },
	} {
		stream, err := pb.NewRadixIndexClient(conn).Subscribe(ctx)
		must.Succeed(t, err)
		good, bad := radixQuery(1, recordedTokens(2)), radixQuery(2, recordedTokens(2))
		wrong(bad)
		exchanged(t, stream, good)
		must.Succeed(t, stream.Send(bad))
		if _, err := stream.Recv(); grpcstatus.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v: %v", bad, err)
		}
	}
	large, err := pb.NewRadixIndexClient(conn).Subscribe(ctx)
	must.Succeed(t, err)
	must.Succeed(t, large.Send(&pb.Query{ContentHashes: make([]uint64, 9000)}))
	if _, err := large.Recv(); grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 72 KB: %v", err)
	}

	// Placements are acknowledged. Replicas of an index get nothing.
	publish, err := pb.NewRadixIndexClient(conn).Publish(ctx)
	must.Succeed(t, err)
	for i := range uint64(5) {
		must.Succeed(t, publish.Send(&pb.Update{Holder: "http://w", Epoch: 1, Seq: i}))
		if ack, err := publish.Recv(); err != nil || ack.Holder != "http://w" || ack.Epoch != 1 || ack.AppliedSeq != i {
			t.Errorf("update %d: %v, %v", i, ack, err)
		}
	}
	for _, method := range []string{"Pull", "Digests", "PullHolders"} {
		if code, _ := codeOf(ctx, conn, "/radix_index.RadixIndex/"+method); code != codes.Unimplemented {
			t.Errorf("%s: %s", method, code)
		}
	}
	_, plain := grpcProcess(t, "")
	if code, _ := codeOf(ctx, dialed(t, plain, "", nil), "/radix_index.RadixIndex/Subscribe"); code != codes.Unimplemented {
		t.Errorf("without the setting: %s", code)
	}
}

// TestRadixIndexOfClients holds that tenants, limits and the end of the server apply to streams.
func TestRadixIndexOfClients(t *testing.T) {
	t.Parallel()
	a, b := newRuledEngine(t, "10.0.0.1:1", 0), newRuledEngine(t, "10.0.0.2:1", 0)
	file := credentialsFile(t, "a query a", "b query b", "operator admin '*'")
	source := "  - {endpoint: 'tcp://%s', type: SGLang, modelname: m, instance_id: '%s', tenant_id: %s, block_size: 16}\n"
	p, address := grpcProcess(t, radixOn+"limits: {client_watches: 2, client_requests: 20}\nauth: {file: "+file+"}\nsources:\n"+
		fmt.Sprintf(source, a.pub.Addr(), a.name, "a")+fmt.Sprintf(source, b.pub.Addr(), b.name, "b"))
	a.publish(ruledStored(0, 2), ruledStored(2, 3, "medium", "CPU"))
	b.publish(ruledStored(0, 4))
	eventually(t, "the engines never settled", func() (string, bool) {
		_, answer := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		return answer, strings.Count(answer, `"LastSeq":0`) == 2
	})
	ctx := inTime(t)
	subscribed := func(token string) grpc.BidiStreamingClient[pb.Query, pb.Match] {
		stream, err := pb.NewRadixIndexClient(dialed(t, address, token, nil)).Subscribe(ctx)
		must.Succeed(t, err)
		return stream
	}
	streams := make(map[string]grpc.BidiStreamingClient[pb.Query, pb.Match])
	for token, want := range map[string]string{"a": "http://10.0.0.1:1 3/2", "b": "http://10.0.0.2:1 4/4", "operator": "http://10.0.0.2:1 4/4, http://10.0.0.1:1 3/2"} {
		streams[token] = subscribed(token)
		if got := scoresOf(exchanged(t, streams[token], radixQuery(1, recordedTokens(8)))); got != want {
			t.Errorf("%s gets %s, want %s", token, got, want)
		}
	}
	// A stream counts as a watch, a query as a request.
	exchanged(t, subscribed("b"), radixQuery(1, recordedTokens(8)))
	third := subscribed("b")
	if _, err := third.Recv(); grpcstatus.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "limits.client_watches") {
		t.Errorf("the third stream: %v", err)
	}
	answered, refused := 0, 0
	for i := range uint64(200) {
		if len(exchanged(t, streams["operator"], radixQuery(i, recordedTokens(8))).Scores) > 0 {
			answered++
		} else {
			refused++
		}
	}
	if answered < 10 || refused < 50 {
		t.Errorf("%d answers, %d refusals with 20 requests a second", answered, refused)
	}
	// Credentials that are gone end their streams.
	fewer, err := os.ReadFile(credentialsFile(t, "b query b", "operator admin '*'"))
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(file, fewer, 0o600))
	eventually(t, "the stream goes on without credentials", func() (string, bool) {
		streams["a"].Send(radixQuery(1, recordedTokens(8)))
		_, err := streams["a"].Recv()
		return fmt.Sprint(err), grpcstatus.Code(err) == codes.Unauthenticated
	})
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	eventually(t, "the stream outlives the server", func() (string, bool) {
		_, err := streams["b"].Recv()
		return fmt.Sprint(err), grpcstatus.Code(err) == codes.Unavailable
	})
	must.Succeed(t, p.cmd.Wait())
	if strings.Contains(p.log(), "cut off") {
		t.Errorf("calls were cut off: %s", p.log())
	}
}

// TestRadixIndexSlowReader sends queries and reads no answer. The server stops reading; afterwards
// each query has its answer.
func TestRadixIndexSlowReader(t *testing.T) {
	t.Parallel()
	p, address := grpcProcess(t, radixOn)
	ctx := t.Context()
	client := pb.NewRadixIndexClient(dialed(t, address, "", nil))
	slow, err := client.Subscribe(ctx)
	must.Succeed(t, err)
	const most = 400_000
	var sent atomic.Int64
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range uint64(most) {
			if err = slow.Send(radixQuery(i, recordedTokens(4))); err != nil || stop.Load() {
				break
			}
			sent.Add(1)
		}
		if err == nil {
			err = slow.CloseSend()
		}
		done <- err
	}()
	line := regexp.MustCompile(`conductor_grpc_messages_total\{code="OK",rpc="/radix_index.RadixIndex/Subscribe"\} \S+`)
	last, same := "", 0
	eventually(t, "the server reads on", func() (string, bool) {
		_, metrics := get(p.url + "/metrics")
		now := fmt.Sprint(line.FindString(metrics), sent.Load())
		if same++; now != last {
			last, same = now, 0
		}
		return now, same >= 5
	})
	if n := sent.Load(); n == most {
		t.Errorf("the server has taken %d queries, and none of their answers was read", n)
	}
	// The race detector multiplies resident memory, and leaves the heap as it is.
	if heap := metric(p, "go_memstats_heap_inuse_bytes"); heap <= 0 || heap > 64<<20 {
		t.Errorf("the heap has %.0f MiB while answers are unread", heap/(1<<20))
	}
	other, err := client.Subscribe(ctx)
	must.Succeed(t, err)
	exchanged(t, other, radixQuery(1, recordedTokens(4)))
	stop.Store(true)
	var read uint64
	for ; ; read++ {
		match, err := slow.Recv()
		if err == io.EOF {
			break
		}
		must.Succeed(t, err)
		if match.QueryId != read {
			t.Fatalf("answer %d is to query %d", read, match.QueryId)
		}
	}
	must.Succeed(t, <-done)
	if n := uint64(sent.Load()); read < n || read > n+1 {
		t.Errorf("%d answers to %d queries", read, n)
	}
}
