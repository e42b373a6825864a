package main

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	kv "kvconductor/client"
	kvrpc "kvconductor/client/rpc"
	"kvconductor/internal/must"
)

// TestClientLibraryOverGRPC holds that the clients over HTTP and gRPC read the same rows from a
// real server.
func TestClientLibraryOverGRPC(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	p, address := grpcProcess(t, "auth: {file: "+credentialsFile(t, "router query,register '*'")+"}\n")
	over, err := kv.New(p.url, kv.WithToken("router"))
	must.Succeed(t, err)
	c, err := kvrpc.New(address, kvrpc.WithTokens(func() (string, error) { return "router", nil }))
	must.Succeed(t, err)
	defer c.Close()
	ctx := inTime(t)
	must.Succeed(t, over.Register(ctx, kv.Registration{Endpoint: "tcp://" + engine.pub.Addr().String(), Type: "vLLM", Model: "m", Instance: "engine", BlockSize: recordedBlock}))
	q := kv.Query{Model: "m", BlockSize: recordedBlock, Tokens: recordedTokens(8)}
	enough := errors.New("enough")
	first := true
	err = c.Watch(ctx, q, 20*time.Millisecond, func(rows kv.Rows) error {
		if first {
			first = false
			engine.publish(ruledStored(0, 4))
		}
		if rows.Longest().Longest == 4*recordedBlock {
			return enough
		}
		return nil
	})
	if err != enough {
		t.Fatalf("the watch ended with %v", err)
	}
	for _, q := range []kv.Query{q, {Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1, 1 << 63}}, {Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1000, 1001}, HashKind: kv.Engine}, {Model: "m", BlockSize: recordedBlock, Tokens: q.Tokens, Instance: "engine", MinMatched: 1, Top: 1}} {
		want, err := over.Query(ctx, q)
		must.Succeed(t, err)
		if got, err := c.Query(ctx, q); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("over gRPC %+v, %v; over HTTP %+v", got, err, want)
		}
	}
	q.Detail = true
	if rows, err := c.Query(ctx, q); err != nil || rows[0].Detail[0].State != "synced" || rows[0].Detail[0].AgeMS == nil {
		t.Errorf("%+v, %v", rows, err)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m"}); grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("without a block size: %v", err)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1}, HashKind: "other"}); grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("hashes of an unknown kind: %v", err)
	}
	stranger, err := kvrpc.New(address)
	must.Succeed(t, err)
	defer stranger.Close()
	if _, err := stranger.Query(ctx, q); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}
