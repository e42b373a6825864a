package main

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	kv "example.com/conductor/client"
	kvrpc "example.com/conductor/client/rpc"
	"example.com/conductor/internal/must"
)

// TestClientLibraryOverGRPC holds that the clients over HTTP and gRPC read the same rows from a
// real server.
func TestClientLibraryOverGRPC(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	p, address := grpcProcess(t, "auth: {file: "+credentialsFile(t, "router query,register '*'", "default query default")+
		"}\nlimits: {max_token_id: 150000}\n")
	over, err := kv.New(p.url, kv.WithToken("router"))
	must.Succeed(t, err)
	c, err := kvrpc.New(address, kvrpc.WithTokens(func() (string, error) { return "router", nil }))
	must.Succeed(t, err)
	defer c.Close()
	ctx := inTime(t)
	must.Succeed(t, over.Register(ctx, kv.Registration{Endpoint: "tcp://" + engine.pub.Addr().String(), Type: "vLLM", Model: "m",
		Instance: "engine", BlockSize: recordedBlock}))
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
	for _, q := range []kv.Query{q, {Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1, 1 << 63}},
		{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1000, 1001}, HashKind: kv.Engine},
		{Model: "m", BlockSize: recordedBlock, Tokens: q.Tokens, Instance: "engine", MinMatched: 1, Top: 1}} {
		want, err := over.Query(ctx, q)
		must.Succeed(t, err)
		if got, err := c.Query(ctx, q); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("over gRPC %+v, %v; over HTTP %+v", got, err, want)
		}
	}
	batch := []kv.Query{q, {BlockSize: recordedBlock}, {Model: "m", BlockSize: recordedBlock, Tokens: []uint32{1}, Instance: "engine"}}
	overHTTP, err := over.QueryBatch(ctx, batch)
	must.Succeed(t, err)
	overGRPC, err := c.QueryBatch(ctx, batch)
	must.Succeed(t, err)
	var refused *kv.Error
	if !errors.As(overGRPC[1].Err, &refused) || refused.Status != 400 || refused.Field != "model" || refused.Index != nil {
		t.Errorf("a query without a model: %+v", overGRPC[1])
	}
	overGRPC[1] = overHTTP[1] // the texts differ
	if !reflect.DeepEqual(overGRPC, overHTTP) {
		t.Errorf("a batch over gRPC %+v, over HTTP %+v", overGRPC, overHTTP)
	}
	hashed := kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1000, 1001}, HashKind: kv.Engine}
	one, err := c.Query(ctx, hashed)
	must.Succeed(t, err)
	got, err := c.QueryBatch(ctx, []kv.Query{hashed, {Tenant: "other", Model: "m", BlockSize: recordedBlock, Tokens: []uint32{1}},
		{Model: "m", BlockSize: recordedBlock, Tokens: []uint32{1, 150001}}})
	must.Succeed(t, err)
	if !reflect.DeepEqual(got[0], kv.BatchAnswer{Rows: one}) || len(got[1].Rows) != 0 || got[1].Err != nil {
		t.Errorf("hashes and another tenant: %+v, want %+v", got, one)
	}
	if !errors.As(got[2].Err, &refused) || refused.Field != "tokens.ids" || refused.Index == nil || *refused.Index != 1 {
		t.Errorf("a token beyond the vocabulary: %+v", got[2].Err)
	}
	_, err = c.QueryBatch(ctx, make([]kv.Query, 257))
	if grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("257 queries: %v", err)
	}
	q.Detail = true
	if rows, err := c.Query(ctx, q); err != nil || rows[0].Detail[0].State != "synced" || rows[0].Detail[0].AgeMS == nil {
		t.Errorf("%+v, %v", rows, err)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m"}); grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("without a block size: %v", err)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1},
		HashKind: "other"}); grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("hashes of an unknown kind: %v", err)
	}
	narrow, err := kvrpc.New(address, kvrpc.WithTokens(func() (string, error) { return "default", nil }))
	must.Succeed(t, err)
	defer narrow.Close()
	got, err = narrow.QueryBatch(ctx, []kv.Query{{Tenant: "other", Model: "m", BlockSize: recordedBlock, Tokens: []uint32{1}}})
	if err != nil || !errors.As(got[0].Err, &refused) || refused.Status != 403 {
		t.Errorf("a tenant of others: %+v, %v", got, err)
	}
	stranger, err := kvrpc.New(address)
	must.Succeed(t, err)
	defer stranger.Close()
	if _, err := stranger.Query(ctx, q); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}
