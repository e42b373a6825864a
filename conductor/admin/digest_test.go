package admin_test

import (
	"net/http/httptest"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// TestDigestAnswer reads the answer of /admin/digest back, holds it against the document, and
// counts blocks on two media, under a salt, on a medium whose blocks expire, and without tokens.
func TestDigestAnswer(t *testing.T) {
	doc := apitest.Load(t)
	synctest.Test(t, func(t *testing.T) {
		n := new(streamtest.Network)
		c := conductor.New(conductor.Options{HashSeed: 1<<64 - 1, Log: zerolog.Nop(), Stream: stream.Config{Transport: n}})
		defer c.Close()
		must.Succeed(t, c.Register(registration.Registration{
			Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "e", BlockSize: 2, Salt: "s",
			MediaTTL: map[string]time.Duration{"DISK": time.Hour},
		}, ingest.RegisterOptions{}))
		synctest.Wait()
		store := func(hash int, medium string, tokens []int, salt any) any {
			return map[string]any{
				"type": "BlockStored", "block_hashes": []int{hash}, "parent_block_hash": nil, "token_ids": tokens, "block_size": 2,
				"lora_id": nil, "medium": medium, "lora_name": nil, "cache_salt": salt,
			}
		}
		p := n.PublisherAt("tcp://e:1")
		p.Publish(streamtest.EncodeBatch(0.5, 0, store(1, "GPU", []int{1, 2}, "s"), store(1, "CPU", []int{1, 2}, "s"),
			store(1, "DISK", []int{1, 2}, "s")))
		p.Publish(streamtest.EncodeBatch(1.5, 0, store(2, "GPU", []int{3, 4}, "t"), store(3, "GPU", []int{}, nil)))
		synctest.Wait()

		opts := admin.Options{
			Dialect: conductorhttp.Options{MaxBody: 1 << 10, MaxTokens: 64}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
		}
		req, rec := httptest.NewRequest("GET", admin.DigestPath, nil), httptest.NewRecorder()
		admin.New(c, opts).ServeHTTP(rec, req)
		doc.CheckAnswer(t, req, rec)
		seed, got, err := admin.ReadDigests(rec.Body)
		if err != nil || seed != 1<<64-1 || len(got) != 1 {
			t.Fatalf("%d %+v %v", seed, got, err)
		}
		want := c.Sources().Digests("")[0]
		want.Registration = registration.Registration{Instance: "e", Tenant: "default"}
		if !reflect.DeepEqual(got[0], want) {
			t.Errorf("%+v\nwant %+v", got[0], want)
		}
		if m := want.Mark; m == nil || m.Seq != 1 || m.Blocks != 4 || m.Loose != 1 || want.Missing != "" || len(want.Checkpoints) != 1 ||
			want.Checkpoints[0].Blocks != 2 || len(want.Deployments) != 1 {
			t.Errorf("%+v %+v", want, m)
		}
	})
}
