package main

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	kv "example.com/conductor/client"
	"example.com/conductor/internal/must"
)

// TestClientLibrary uses the client for routers against a real server.
func TestClientLibrary(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "router query,register '*'")+"}\n")
	c, err := kv.New(p.url, kv.WithToken("router"))
	must.Succeed(t, err)
	ctx := t.Context()
	r := kv.Registration{Endpoint: "tcp://" + engine.pub.Addr().String(), Type: "vLLM", Model: "m", Instance: "engine",
		BlockSize: recordedBlock}
	must.Succeed(t, c.Register(ctx, r))
	must.Succeed(t, c.Register(ctx, r))
	engine.publish(ruledStored(0, 4))
	q := kv.Query{Model: "m", BlockSize: recordedBlock, Tokens: recordedTokens(8), Detail: true}
	var rows kv.Rows
	eventually(t, "the engine never settled", func() (string, bool) {
		rows, err = c.Query(ctx, q)
		must.Succeed(t, err)
		// The detail is taken before the match, so it may be older by a batch.
		return "", len(rows) == 1 && rows[0].Longest == 4*recordedBlock && rows[0].Detail[0].State == "synced" &&
			len(rows[0].Detail[0].Stay) > 0
	})
	row := rows.Longest()
	if row.Instance != "engine" || row.Media["GPU"] != 4*recordedBlock || row.Ranks[0] != (kv.Rank{Rank: 0, GPU: 64, CPU: 64, Disk: 64}) ||
		row.Detail[0].State != "synced" || row.Detail[0].Stay["GPU"]["1s"] != 1 {
		t.Errorf("%+v", row)
	}
	answers, err := c.QueryBatch(ctx, []kv.Query{q, {BlockSize: 16}, q})
	must.Succeed(t, err)
	var refused *kv.Error
	if answers[0].Rows[0].Longest != 64 || !errors.As(answers[1].Err, &refused) || refused.Field != "model" || answers[2].Err != nil {
		t.Errorf("%+v", answers)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1}}); err != nil {
		t.Error(err)
	}
	hashed := kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1000, 1001, 1002, 1003}, HashKind: kv.Engine}
	if rows, err := c.Query(ctx, hashed); err != nil || len(rows) != 1 || rows[0].Longest != 4*recordedBlock {
		t.Errorf("hashes of the engine: %+v, %v", rows, err)
	}
	other := kv.Query{Model: "other", BlockSize: recordedBlock, Tokens: recordedTokens(1), Detail: true}
	if rows, err := c.Query(ctx, other); err != nil || len(rows) != 0 {
		t.Errorf("another model: %+v, %v", rows, err)
	}
	if answers, err := c.QueryBatch(ctx, []kv.Query{other}); err != nil || answers[0].Err != nil || len(answers[0].Rows) != 0 {
		t.Errorf("another model in a batch: %+v, %v", answers, err)
	}
	must.Succeed(t, c.Register(ctx, kv.Registration{Instance: "found", Discover: "http://127.0.0.1:1"}))
	must.Succeed(t, c.Unregister(ctx, "found", "", 0))
	packed, err := kv.New(p.url, kv.WithToken("router"), kv.WithMsgpack())
	must.Succeed(t, err)
	plain := kv.Query{Model: "m", BlockSize: recordedBlock, Tokens: recordedTokens(8)}
	inJSON, err := c.Query(ctx, plain)
	must.Succeed(t, err)
	inJSON[0].Media = nil
	if inMsgpack, err := packed.Query(ctx, plain); err != nil || !reflect.DeepEqual(inMsgpack, inJSON) {
		t.Errorf("in msgpack %+v, %v; in JSON %+v", inMsgpack, err, inJSON)
	}
	if rows, err := packed.Query(ctx, kv.Query{Model: "m", BlockSize: recordedBlock, SeqHashes: []uint64{1, 1 << 63},
		Instance: "engine"}); err != nil || len(rows) != 1 || rows[0].Longest != 0 {
		t.Errorf("hashes in msgpack: %+v, %v", rows, err)
	}
	if rows, err := packed.Query(ctx, hashed); err != nil || len(rows) != 1 || rows[0].Longest != 4*recordedBlock {
		t.Errorf("hashes of the engine in msgpack: %+v, %v", rows, err)
	}
	if rows, err := packed.Query(ctx, q); err != nil || rows[0].Detail[0].State != "synced" {
		t.Errorf("detail from a client of msgpack: %+v, %v", rows, err)
	}
	if _, err := packed.Query(ctx, kv.Query{Model: "m"}); !errors.As(err, &refused) || refused.Status != 400 ||
		refused.Field != "block_size" {
		t.Errorf("without a block size, in msgpack: %v", err)
	}
	if _, err := c.Query(ctx, kv.Query{Model: "m"}); !errors.As(err, &refused) || refused.Status != 400 || refused.Field != "block_size" {
		t.Errorf("without a block size: %v", err)
	}
	if all, err := c.Services(ctx); err != nil || len(all) != 1 || all[0].State != "synced" || all[0].Blocks != 4 {
		t.Errorf("%+v, %v", all, err)
	}
	if ready, err := c.Ready(ctx); err != nil || !ready {
		t.Errorf("ready: %v, %v", ready, err)
	}
	must.Succeed(t, c.Feedback(ctx, "engine", "", "GPU", 64, 60))
	must.Succeed(t, c.Unregister(ctx, "engine", "", 0))
	if err := c.Unregister(ctx, "engine", "", 0); !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("a second time: %v", err)
	}
	for _, options := range [][]kv.Option{nil, {kv.WithMsgpack()}} {
		stranger, err := kv.New(p.url, options...)
		must.Succeed(t, err)
		if _, err := stranger.Query(ctx, plain); !errors.As(err, &refused) || refused.Status != 401 ||
			!strings.Contains(refused.Error(), "token") {
			t.Errorf("without a token: %v", err)
		}
	}
}
