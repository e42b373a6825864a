package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestWholeVLLM runs two whole vLLM on the CPU, with a model of random weights, behind Envoy with the picker, and compares what the
// picker expects of an engine with what that engine says that it took from its cache. Then it kills and stops one part after another.
func TestWholeVLLM(t *testing.T) {
	w := startWhole(t)
	defer w.print()
	for _, part := range []struct {
		name string
		run  func(w *whole)
	}{
		{"cached tokens", (*whole).cachedTokens},
		{"without a pause", (*whole).withoutPause},
		{"bursts", (*whole).bursts},
		{"two pickers", (*whole).twoPickers},
		{"Conductor stopped", (*whole).conductorStopped},
		{"picker killed", (*whole).pickerKilled},
		{"engine killed", (*whole).engineKilled},
	} {
		t.Run(part.name, func(t *testing.T) {
			w.t = t
			part.run(w)
		})
		w.t = w.outer
	}
}

// print prints the table.
func (w *whole) print() {
	fmt.Printf("\n| What | Figures |\n|---|---|\n%s\n\n", strings.Join(w.figures, "\n"))
}

// conversation is what a client and the model have said so far.
type conversation struct {
	system   string
	messages []map[string]string
}

func (c *conversation) all() []map[string]string {
	return append([]map[string]string{{"role": "system", "content": c.system}}, c.messages...)
}

// mix makes requests of all kinds. Most begin as others do.
type mix struct {
	w       *whole
	texts   []string
	ids     [][]uint32
	systems []string
	chats   []*conversation
}

// newMix returns a mix with two system prompts.
func (w *whole) newMix() *mix { return &mix{w: w, systems: []string{w.text(150), w.text(220)}} }

// last keeps the latest of what was sent.
func last[T any](all []T) []T { return all[max(0, len(all)-6):] }

// next returns a request, its kind, and what to do with its answer.
func (m *mix) next(i int) (a ask, kind string, then func(*told)) {
	w := m.w
	stream := i/4%2 == 1
	then = func(*told) {}
	model := wholeModel
	if w.adapter != "" && i%8 == 7 {
		model = "sql"
	}
	switch i % 4 {
	case 0:
		text := w.text(40 + w.random.IntN(200))
		if len(m.texts) > 0 && w.random.IntN(4) > 0 {
			old := m.texts[w.random.IntN(len(m.texts))]
			text = old[:w.random.IntN(len(old))+1] + " " + w.text(1+w.random.IntN(120))
			text = text[:min(len(text), 6000)]
		}
		m.texts = last(append(m.texts, text))
		a, kind = w.completion(text, stream), "text"
	case 1:
		p := w.fresh(wholeBlock + w.random.IntN(500))
		if len(m.ids) > 0 && w.random.IntN(4) > 0 {
			old := m.ids[w.random.IntN(len(m.ids))]
			p = append(append([]uint32{}, old[:1+w.random.IntN(len(old))]...), w.fresh(w.random.IntN(200))...)
			p = p[:min(len(p), 1500)]
		}
		m.ids = last(append(m.ids, p))
		a, kind = w.completion(p, stream), "token ids"
	default:
		var c *conversation
		if len(m.chats) == 0 || w.random.IntN(4) == 0 {
			c = &conversation{system: m.systems[w.random.IntN(len(m.systems))]}
			m.chats = last(append(m.chats, c))
		} else {
			c = m.chats[w.random.IntN(len(m.chats))]
		}
		if len(c.messages) > 12 {
			c.messages = nil
		}
		c.messages = append(c.messages, map[string]string{"role": "user", "content": w.text(5 + w.random.IntN(60))})
		a, kind = newAsk("/v1/chat/completions", map[string]any{"messages": c.all(), "max_tokens": 1 + w.random.IntN(8)}, stream), "chat"
		then = func(t *told) {
			c.messages = append(c.messages, map[string]string{"role": "assistant", "content": t.text})
		}
	}
	if a.body["model"] = model; model != wholeModel {
		kind += ", adapter"
	}
	if stream {
		kind += ", stream"
	}
	return a, kind, then
}

// count has the figures of requests of one kind.
type count struct{ requests, hits, prompt, predicted, cached, wrong int }

func (c *count) add(a *told) {
	c.requests++
	c.prompt += a.prompt
	c.predicted += a.predicted()
	c.cached += a.cached
	if a.cached > 0 {
		c.hits++
	}
	if a.cached != a.predicted() {
		c.wrong++
	}
}

func (c *count) String() string {
	return fmt.Sprintf("%d requests, %d with a hit; of %d prompt tokens %d predicted, %d cached; %d answers differ", c.requests, c.hits,
		c.prompt, c.predicted, c.cached, c.wrong)
}

// cachedTokens sends requests one after another. Before each, Conductor knows all that the engines did before. Then each answer has to
// be what the picker expected.
func (w *whole) cachedTokens() {
	w.figure("one after another", w.sequence(number(w.t, "E2E_REQUESTS", 300), true), 0)
}

// withoutPause does not wait for Conductor between requests: what the engines have not announced yet is expected because of the picker's
// own reports. An engine may have evicted what it has not announced yet, so that few expectations are too long.
func (w *whole) withoutPause() {
	n := number(w.t, "E2E_REQUESTS", 300)
	w.figure("one after another, without a pause", w.sequence(n, false), n/20)
}

// figure adds the counts of a sequence to the table, and checks them.
func (w *whole) figure(name string, kinds map[string]*count, mayDiffer int) {
	w.t.Helper()
	var all count
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		c := kinds[kind]
		w.say(name+": "+kind, "%s", c)
		all.requests, all.hits, all.prompt = all.requests+c.requests, all.hits+c.hits, all.prompt+c.prompt
		all.predicted, all.cached, all.wrong = all.predicted+c.predicted, all.cached+c.cached, all.wrong+c.wrong
		if c.hits == 0 {
			w.t.Errorf("%s: no hit", kind)
		}
	}
	w.say(name, "%s", &all)
	texts := w.picker.metric("conductor_picker_tokenization_seconds_count", "")
	w.say(name+": tokens of texts so far",
		"%.0f texts tokenized by engines, %.1f ms each, and %.0f from the cache; all choices %.1f ms each",
		texts, 1e3*w.picker.metric("conductor_picker_tokenization_seconds_sum", "")/texts,
		w.picker.metric("conductor_picker_tokenizations_total", `"cached"`),
		1e3*w.picker.metric("conductor_picker_pick_seconds_sum", "")/w.picker.metric("conductor_picker_pick_seconds_count", ""))
	if all.wrong > mayDiffer {
		w.t.Errorf("%d answers differ from what was predicted, want at most %d", all.wrong, mayDiffer)
	}
}

// sequence sends n requests of all kinds, one after another, and returns the figures by kind.
func (w *whole) sequence(n int, settled bool) map[string]*count {
	w.t.Helper()
	m, kinds := w.newMix(), map[string]*count{}
	wrong, engines := 0, map[string]int{}
	for i := range n {
		a, kind, then := m.next(i)
		if settled {
			w.settle()
		}
		got := w.send(w.envoy, a)
		if got.failed() || !got.byPrefix() {
			w.t.Fatalf("request %d, %s: %s", i, kind, got)
		}
		if got.tokens != got.prompt || got.chosen != got.served {
			w.t.Errorf("request %d, %s: %s", i, kind, got)
		}
		if got.cached != got.predicted() {
			if wrong++; wrong <= 8 {
				w.t.Logf("request %d, %s: predicted %d: %s", i, kind, got.predicted(), got)
			}
		}
		engines[got.served]++
		if kinds[kind] == nil {
			kinds[kind] = &count{}
		}
		kinds[kind].add(got)
		then(got)
	}
	if len(engines) != len(w.engines) {
		w.t.Errorf("not all engines were used: %v", engines)
	}
	return kinds
}

// burst sends equal prompts at once, or one every pause.
func (w *whole) burst(e *env, a ask, n int, pause time.Duration) []*told {
	w.t.Helper()
	all := make([]*told, n)
	var requests sync.WaitGroup
	for i := range all {
		requests.Go(func() { all[i] = w.send(e, a) })
		<-time.After(pause)
	}
	requests.Wait()
	first, split := all[0], false
	for i, got := range all {
		if got.failed() || !got.byPrefix() {
			w.t.Errorf("a request of a burst: %s", got)
		}
		if got.served != first.served && !split {
			split = true
			w.t.Logf("split: request %d, %s after the first: %s", i, got.began.Sub(first.began), got.why)
		}
	}
	return all
}

// burstFigures are of several bursts.
type burstFigures struct{ bursts, split, prompt, computed, predicted int }

// add adds a burst. It returns "", or what is wrong: an engine has to compute the blocks of a prompt once, and for each further request
// of the burst at most the tokens behind those blocks.
func (f *burstFigures) add(all []*told) (wrong string) {
	engines := map[string]int{}
	for _, got := range all {
		f.computed += got.prompt - got.cached
		f.predicted += got.prompt - got.predicted()
		if engines[got.served] += got.prompt - got.cached; got.attempts > 1 {
			wrong = got.String()
		}
	}
	most := all[0].prompt + len(all)*wholeBlock
	for engine, computed := range engines {
		if computed > most {
			wrong = fmt.Sprintf("%s computed %d tokens of prompts of %d", engine, computed, all[0].prompt)
		}
	}
	f.prompt += all[0].prompt
	if f.bursts++; len(engines) > 1 {
		f.split++
	}
	return wrong
}

func (f *burstFigures) String() string {
	return fmt.Sprintf("%d bursts, %d of them to both engines; one prompt of each has %d tokens in all, %d were computed, %d were to be",
		f.bursts, f.split, f.prompt, f.computed, f.predicted)
}

const burstSize = 16

// bursts sends equal prompts that nobody has computed. They go to one engine, unless their tokens behind whole blocks add up to more than
// the prompt: then another engine has less to do, even with all of the prompt to compute, and both compute it.
func (w *whole) bursts() {
	n := number(w.t, "E2E_BURSTS", 8)
	for _, kind := range []struct {
		name  string
		make  func() ask
		pause time.Duration
		one   bool // all requests of a burst have to go to one engine
	}{
		{"token ids, whole blocks and 1 token", func() ask { return w.completion(w.fresh(40*wholeBlock+1), false) }, 0, true},
		{"token ids, whole blocks and 24 tokens", func() ask { return w.completion(w.fresh(40*wholeBlock+24), false) }, 0, true},
		{"text", func() ask { return w.completion(w.text(400), false) }, 0, false},
		{"chat, streams", func() ask {
			messages := []map[string]string{{"role": "user", "content": w.text(400)}}
			return newAsk("/v1/chat/completions", map[string]any{"messages": messages}, true)
		}, 0, false},
		{"token ids, one every 30 ms", func() ask { return w.completion(w.fresh(40*wholeBlock+1), false) }, 30 * time.Millisecond, true},
	} {
		var f burstFigures
		for range n {
			w.settle()
			if wrong := f.add(w.burst(w.envoy, kind.make(), burstSize, kind.pause)); wrong != "" {
				w.t.Errorf("%s: %s", kind.name, wrong)
			}
		}
		w.say(fmt.Sprintf("bursts of %d, %s", burstSize, kind.name), "%s", &f)
		if f.split > 0 && kind.one {
			w.t.Errorf("%s: %s", kind.name, &f)
		}
	}
}

// load sends requests from several clients until n are answered, and returns them.
func (w *whole) load(e *env, n, clients int, at func(i int)) []*told {
	all := make([]*told, n)
	asks := make([]ask, n)
	m := w.newMix()
	for i := range asks { // before, because a mix is not safe for concurrent use
		var then func(*told)
		asks[i], _, then = m.next(i)
		then(&told{text: "so"})
		asks[i].body["max_tokens"] = 2
	}
	var next atomic.Int64
	var work sync.WaitGroup
	for range clients {
		work.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				at(i)
				all[i] = w.send(e, asks[i])
			}
		})
	}
	work.Wait()
	return all
}

// failures returns those that failed, and how many of them began after a moment.
func failures(all []*told, since time.Time) (failed []*told, after int) {
	for _, a := range all {
		if a.failed() {
			failed = append(failed, a)
			if a.began.After(since) {
				after++
			}
		}
	}
	return failed, after
}

// reasons counts requests by what decided where they go.
func reasons(all []*told) map[string]int {
	by := map[string]int{}
	for _, a := range all {
		if a.why == "" {
			by["no picker"]++
		} else {
			by[a.reason]++
		}
	}
	return by
}

const loadClients = 4

// conductorStopped stops Conductor while requests run. The picker waits for it as long as it does by default.
func (w *whole) conductorStopped() {
	w.picker.kill()
	w.picker.start(w.outer, w.url, "--tokenizer-timeout", "10s")
	w.picker.up()
	w.awaitPicker(w.envoy)
	n := number(w.t, "E2E_LOAD", 400)
	row := func(name string, all []*told) {
		p50, p99 := quantiles(all)
		failed, _ := failures(all, time.Time{})
		for _, a := range failed {
			w.t.Errorf("%s: %s", name, a)
		}
		w.say(name, "%d requests of %d clients, %d failed; p50 %s, p99 %s; by reason %v", len(all), loadClients, len(failed), p50, p99,
			reasons(all))
	}
	row("with Conductor", w.load(w.envoy, n, loadClients, func(int) {}))
	w.conductor.signal(syscall.SIGSTOP)
	defer w.conductor.signal(syscall.SIGCONT)
	stopped := w.load(w.envoy, n, loadClients, func(int) {})
	row("Conductor stopped", stopped)
	if by := reasons(stopped); by["prefix"]+by["no_prefix"] > 0 {
		w.t.Errorf("requests went by prefix while Conductor was stopped: %v", by)
	}
	w.conductor.signal(syscall.SIGCONT)
	wait(w.t, enginePatience, "prefixes count again", func() string {
		if a := w.send(w.envoy, w.completion(w.fresh(8), false)); !a.byPrefix() {
			return a.String()
		}
		return ""
	})
	row("Conductor goes on", w.load(w.envoy, n, loadClients, func(int) {}))
	w.again("after Conductor was stopped")
}

// again checks that predictions are exact.
func (w *whole) again(name string) {
	w.t.Helper()
	w.picker.kill()
	w.picker.start(w.outer, w.url, patient...)
	w.picker.up()
	w.awaitPicker(w.envoy)
	w.figure(name, w.sequence(32, true), 0)
}

// pickerKilled kills the picker while requests run, and starts it again.
func (w *whole) pickerKilled() {
	n := number(w.t, "E2E_LOAD", 400)
	var killed time.Time
	var once sync.Once
	all := w.load(w.envoy, n, loadClients, func(i int) {
		if i >= n/4 {
			once.Do(func() {
				killed = time.Now()
				w.picker.kill()
			})
		}
	})
	failed, after := failures(all, killed)
	for _, a := range failed {
		w.t.Errorf("the picker was killed: %s", a)
	}
	p50, p99 := quantiles(all)
	if by := reasons(all); by["no picker"] == 0 || by["prefix"]+by["no_prefix"] == 0 {
		w.t.Errorf("the picker was asked before it was killed, and not later: %v", by)
	}
	w.say("picker killed", "%d requests, %d failed, %d of them began later; p50 %s, p99 %s; by reason %v", n, len(failed), after, p50, p99,
		reasons(all))
	w.again("after the picker was started again")
}

// twoPickers has two pickers behind one Envoy. They know of each other what Conductor tells them, so that of requests that come at once
// some may go to each engine.
func (w *whole) twoPickers() {
	second := &wholePicker{address: freeAddress(w.t), admin: freeAddress(w.t)}
	second.start(w.t, w.url, patient...)
	second.up()
	e := w.startEnvoy(w.picker, second)
	asked := func(p *wholePicker) float64 { return p.metric("conductor_picker_choices_total", "") }
	wait(w.t, enginePatience, "Envoy asks both pickers", func() string {
		before := asked(second)
		w.send(e, w.completion(w.fresh(8), false))
		w.send(e, w.completion(w.fresh(8), false))
		if got := asked(second) - before; got != 1 {
			return fmt.Sprintf("%g of 2 requests", got)
		}
		return ""
	})
	n := number(w.t, "E2E_BURSTS", 8)
	for _, pause := range []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond} {
		var f burstFigures
		for range n {
			w.settle()
			if wrong := f.add(w.burst(e, w.completion(w.fresh(40*wholeBlock+1), false), burstSize, pause)); wrong != "" {
				w.t.Errorf("one request every %s: %s", pause, wrong)
			}
		}
		w.say(fmt.Sprintf("two pickers, bursts of %d, one request every %s", burstSize, pause), "%s", &f)
	}

	// One of them dies: the other takes all. Only a picker gives a reason, so those with one that began later went by the other.
	load := number(w.t, "E2E_LOAD", 400)
	var once sync.Once
	var killed time.Time
	all := w.load(e, load, loadClients, func(i int) {
		if i >= load/4 {
			once.Do(func() {
				second.kill()
				killed = time.Now()
			})
		}
	})
	later, explained := 0, 0
	for _, a := range all {
		if a.began.After(killed) {
			later++
			if a.why != "" {
				explained++
			}
		}
	}
	// Envoy may not have noticed yet that its connection is broken when it sends the first ones there.
	if explained < later-loadClients || explained == 0 {
		w.t.Errorf("of %d requests after one of two pickers was killed the other chose %d", later, explained)
	}
	failed, _ := failures(all, time.Time{})
	for _, a := range failed {
		w.t.Errorf("one of two pickers was killed: %s", a)
	}
	p50, p99 := quantiles(all)
	w.say("one of two pickers killed", "%d requests, %d failed; p50 %s, p99 %s; by reason %v", load, len(failed), p50, p99, reasons(all))
}

// engineKilled kills an engine while requests run, and starts it again.
func (w *whole) engineKilled() {
	n := number(w.t, "E2E_FAILOVER", 2000)
	dying := w.engines[0]
	var killed time.Time
	var once sync.Once
	all := w.load(w.envoy, n, loadClients, func(i int) {
		if i >= n/8 {
			once.Do(func() {
				killed = time.Now()
				dying.kill()
			})
		}
	})
	failed, after := failures(all, killed)
	retried, before := 0, map[string]int{}
	for _, a := range all {
		if a.attempts > 1 {
			retried++
		}
		if a.began.Before(killed) {
			before[a.served]++
		}
	}
	for _, a := range failed {
		w.t.Logf("%s after the engine was killed: %s", a.began.Sub(killed), a)
	}
	p50, p99 := quantiles(all)
	w.say("engine killed", "%d requests, %d failed, %d of them began after it; %d were sent again; p50 %s, p99 %s; by reason %v", n,
		len(failed), after, retried, p50, p99, reasons(all))
	if after > 0 || len(failed) > loadClients || before[dying.address] == 0 {
		w.t.Errorf("%d requests failed, %d of them began after the engine was killed; served before: %v", len(failed), after, before)
	}

	dying.start(w.outer, w.model, w.adapter)
	dying.up()
	if by := reasons(all); by["prefix"] == 0 {
		w.t.Errorf("no request went by its prefix: %v", by)
	}
	wait(w.t, enginePatience, "the engine gets requests again", func() string {
		a := w.send(w.envoy, w.completion(w.fresh(wholeBlock), false))
		if a.failed() || a.served != dying.address {
			return a.String()
		}
		return ""
	})
	w.again("after an engine was killed")
}
