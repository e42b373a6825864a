package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// boundEngine is a publisher that connects to a bound socket of a server.
type boundEngine struct {
	t   *testing.T
	pub zmq4.Socket
	seq uint64
}

func newBoundEngine(t *testing.T, address string) *boundEngine {
	t.Helper()
	pub := zmq4.NewPub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	t.Cleanup(func() { pub.Close() })
	eventually(t, "nothing listens at "+address, func() (string, bool) {
		err := pub.Dial("tcp://" + address)
		return fmt.Sprint(err), err == nil
	})
	eventually(t, "no subscription by "+address, func() (string, bool) { return "", len(pub.(zmq4.Topics).Topics()) > 0 })
	return &boundEngine{t: t, pub: pub}
}

// publish sends one batch under a topic.
func (e *boundEngine) publish(topic string, rank any, events ...any) {
	e.t.Helper()
	payload, err := msgpack.Marshal([]any{1.5, events, rank})
	must.Succeed(e.t, err)
	must.Succeed(e.t, e.pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), binary.BigEndian.AppendUint64(nil, e.seq), payload)))
	e.seq++
}

// TestUnclaimedTopics connects engines to a bound socket under topics that no source claims, and
// follows what the server says about them until it needs to say nothing more.
func TestUnclaimedTopics(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	must.Succeed(t, err)
	_, port, _ := strings.Cut(address, ":")
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "operator query,register,admin '*'", "asks query '*'",
		"of-blue query,register,admin blue")+"}\nregister: {allow: ['bind:tcp://*:"+port+"']}\n"+
		"sources: [{endpoint: 'bind:tcp://127.0.0.1:"+port+"', type: vLLM, modelname: m, instance_id: '10.0.0.1:8000', block_size: 16}]\n")
	services := func(token string) string {
		status, answer := askAs(t, "GET", p.url+"/services", token, "", nil)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
		return answer
	}
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("operator"), 0o600))
	run := func(name string) string {
		out, _ := command(name, "--server", p.url, "--token-file", token).Output()
		return string(out)
	}
	const waits = `nothing has come from the engine yet: it has to connect to 127.0.0.1:`
	if out := run("doctor"); !strings.Contains(out, waits+port+` and publish under the topic "kv@10.0.0.1:8000@m" with dp_rank 0`) ||
		strings.Contains(out, "unclaimed") || strings.Contains(services("operator"), `"unclaimed"`) {
		t.Errorf("before an engine has connected the doctor says %s", out)
	}

	engine := newBoundEngine(t, address)
	for range 50 {
		engine.publish("kv@10.0.0.1@m", 0, ruledStored(0, 1))
	}
	engine.publish("", 0)
	engine.publish("kv@10.0.0.1:8000@m", 3)
	engine.publish("kv@\x1b[2J<b>\xff@m", nil)
	want := `"Topic":"kv@10.0.0.1@m","From":"127.0.0.1:`
	eventually(t, "a topic is missing", func() (string, bool) {
		s := services("operator")
		return s, strings.Contains(s, want) && strings.Contains(s, `"Messages":50,`) && strings.Count(s, `"Advice"`) == 4
	})
	s := services("operator")
	for _, want := range []string{
		`"Endpoint":"bind:tcp://127.0.0.1:` + port + `"`,
		`"InstanceID":"10.0.0.1","ModelName":"m","Advice":"register instance_id \"10.0.0.1\", modelname \"m\", dp_rank 0 with this ` +
			`endpoint, or set the topic \"kv@10.0.0.1:8000@m\" if it is the engine of that source"`,
		`"DPRank":3,`, `dp_rank 3 with this endpoint, as its other ranks are`, `"DPRank":null,`, `"Topic":"","From"`,
		`the topic must be kv@INSTANCE@MODEL`, `"Topic":"kv@\\x1b[2J`, `\\xff@m"`,
	} {
		if !strings.Contains(s, want) {
			t.Errorf("%s is not in %s", want, s)
		}
	}
	if s := services("asks"); !strings.Contains(s, `"Topic":"kv@10.0.0.1@m","From":"","`) || strings.Contains(s, port) {
		t.Errorf("who may not see endpoints sees %s", s)
	}
	if s := services("of-blue"); strings.Contains(s, "unclaimed") {
		t.Errorf("a tenant sees %s", s)
	}
	doc := apitest.Load(t)
	for path, tokens := range map[string][]string{"/services": {"operator", "asks"}, "/admin/stats": {"operator", "of-blue"}} {
		for _, token := range tokens {
			_, answer := askAs(t, "GET", p.url+path, token, "", nil)
			rec := httptest.NewRecorder()
			rec.Header().Set("Content-Type", "application/json")
			rec.WriteString(answer)
			doc.CheckAnswer(t, httptest.NewRequest(http.MethodGet, path, nil), rec)
			if path == "/admin/stats" && strings.Contains(answer, `"topic":"kv@10.0.0.1@m"`) != (token == "operator") {
				t.Errorf("%s of %s: %s", path, token, answer)
			}
		}
	}
	if out := run("doctor"); !strings.Contains(out,
		"warning unclaimed_topic: server\n  50 messages came under the topic \"kv@10.0.0.1@m\" with dp_rank 0 from 127.0.0.1:") ||
		!strings.Contains(out, waits) ||
		!strings.Contains(out, "what came there and no source claims is ") ||
		(strings.Contains(out, "\x1b") || strings.Contains(out, "\xff")) {
		t.Errorf("the doctor says %q", out)
	}
	if out := run("services"); strings.Count(out, "unclaimed topic: ") != 4 ||
		(strings.Contains(out, "\x1b") || strings.Contains(out, "\xff")) {
		t.Errorf("services says %q", out)
	}

	// The registration that was named, and the topic that was named.
	body := `{"endpoint":"bind:tcp://127.0.0.1:` + port +
		`","type":"vLLM","modelname":"m","instance_id":"10.0.0.1","block_size":16,"dp_rank":0}`
	if status, answer := askAs(t, "POST", p.url+"/register", "operator", "application/json", []byte(body)); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	eventually(t, "a topic is unclaimed after its source was registered", func() (string, bool) {
		// The source claims its topic some time after the answer.
		engine.publish("kv@10.0.0.1:8000@m", 0, ruledStored(0, 1))
		engine.publish("kv@10.0.0.1@m", 0, ruledStored(0, 1))
		s := services("operator")
		return s, !strings.Contains(s, want) && strings.Count(s, `"State":"synced"`)+strings.Count(s, `"State":"partial"`) == 2
	})
}

// TestRanksOfBoundSocket connects two engines to a bound socket, each with one registered rank of several. One numbers its ranks
// together, so that its source has them all once that shows; the other, behind a forwarder, has ranks that number their batches for
// themselves.
func TestRanksOfBoundSocket(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	must.Succeed(t, err)
	_, port, _ := strings.Cut(address, ":")
	config := "register: {allow: ['bind:tcp://*:" + port + "']}\nsources:\n"
	for _, name := range []string{"together", "apart"} {
		config += "- {endpoint: 'bind:tcp://127.0.0.1:" + port + "', type: vLLM, modelname: m, instance_id: " + name +
			", block_size: " + fmt.Sprint(recordedBlock) + "}\n"
	}
	p := serveProcess(t, config)
	services := func() (all struct {
		Services []struct {
			InstanceID, State         string
			DPRank, LastSeq, Restarts int
			Findings                  []struct{ Code string }
		}
		Unclaimed []struct {
			Topic  string
			DPRank int
			Advice string
		}
	}) {
		_, answer := askAs(t, "GET", p.url+"/services", "", "", nil)
		must.Succeed(t, json.Unmarshal([]byte(answer), &all))
		return all
	}
	together, apart := newBoundEngine(t, address), newBoundEngine(t, address)
	for i, rank := range []int{0, 3, 0, 2, 0, 1, 0, 1, 2, 3} { // rank 0 fills three gaps with the others, then they are its own
		together.publish("kv@together@m", rank, ruledStored(i, i+1))
	}
	for i := range 10 {
		for rank := range 3 {
			apart.seq = uint64(i)
			apart.publish("kv@apart@m", rank, ruledStored(i, i+1))
		}
	}
	eventually(t, "the batches are not applied", func() (string, bool) {
		all := services()
		done := len(all.Services) == 2 && len(all.Unclaimed) == 2
		for _, s := range all.Services {
			done = done && s.LastSeq == 9
		}
		return fmt.Sprintf("%+v", all), done
	})
	all := services()
	for _, s := range all.Services {
		var codes []string
		for _, f := range s.Findings {
			codes = append(codes, f.Code)
		}
		want, state := []string(nil), "synced"
		if s.InstanceID == "together" {
			want, state = []string{"several_ranks"}, "partial" // without the three batches from before that showed
		}
		if s.State != state || s.Restarts > 0 || !slices.Equal(codes, want) {
			t.Errorf("the source is %+v, want %s and the findings %q", s, state, want)
		}
	}
	// Another rank of it needs no source. If it has one, the findings lead back.
	for _, step := range []struct{ path, finding string }{{"/register", "rank_conflict"}, {"/unregister", "several_ranks"}} {
		body := fmt.Sprintf(`{"endpoint":"bind:tcp://127.0.0.1:%s","type":"vLLM","modelname":"m","instance_id":"together","block_size":%d,`+
			`"dp_rank":3}`, port, recordedBlock)
		status, answer := askAs(t, "POST", p.url+step.path, "", "application/json", []byte(body))
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", step.path, status, answer)
		}
		for _, rank := range []int{3, 0, 1, 3, 2, 0} {
			together.publish("kv@together@m", rank, ruledStored(0, 1))
		}
		eventually(t, "the source does not follow all ranks", func() (string, bool) {
			for _, s := range services().Services {
				if s.InstanceID == "together" && s.DPRank == 0 {
					return fmt.Sprintf("%+v", s), s.LastSeq == int(together.seq)-1 && s.Restarts == 0 &&
						len(s.Findings) == 1 && s.Findings[0].Code == step.finding
				}
			}
			return "it is gone", false
		})
	}
	for _, u := range all.Unclaimed {
		want := fmt.Sprintf("dp_rank %d with this endpoint, as its other ranks are", u.DPRank)
		if u.Topic != "kv@apart@m" || !strings.Contains(u.Advice, want) {
			t.Errorf("unclaimed is %+v", u)
		}
	}
}
