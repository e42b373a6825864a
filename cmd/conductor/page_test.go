package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// hostile is the name of an instance that is an element, if it is taken for HTML.
const hostile = `<img src=x onerror="document.title='owned'">`

// pagedFleet is a server with an engine, one with a hostile name, and one that has lost batches.
func pagedFleet(t *testing.T, more string, listen ...string) (p *process, engine *ruledEngine) {
	engine = newRuledEngine(t, "engine-a", 0)
	named, lossy := newRuledEngine(t, hostile, 0), newRuledEngine(t, "lossy", 0)
	source := "  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: '%s', block_size: 16, tenant_id: %s}\n"
	p = serveProcess(t, more+"sources:\n"+fmt.Sprintf(source, engine.pub.Addr(), "engine-a", "default")+
		fmt.Sprintf(source, named.pub.Addr(), strings.ReplaceAll(hostile, "'", "''"), "blue")+fmt.Sprintf(source, lossy.pub.Addr(), "lossy",
		"default"), listen...)
	engine.publish(ruledStored(0, 2), ruledStored(0, 1, "medium", "CPU"))
	named.publish(ruledStored(0, 4))
	lossy.publish(ruledStored(0, 2))
	lossy.seq += 5
	lossy.publish(ruledStored(0, 1))
	return p, engine
}

// row is an expression of the text of the row of an instance.
func row(instance string) string {
	return fmt.Sprintf(`([...document.querySelectorAll("#sources-body tr")].find((r) => r.textContent.includes(%q))?.innerText ?? "")`,
		instance)
}

// TestPage looks at the page of a server in a browser.
func TestPage(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t)
	p, engine := pagedFleet(t, "")
	engine.settled(p)
	askForPrefixes(t, p)
	t.Run("live", func(t *testing.T) { testPageLive(t, browser, p, engine) })
	t.Run("keyboard", func(t *testing.T) { testPageKeyboard(t, browser, p) }) // before the queries of explain, which may grow the tree
	t.Run("explain", func(t *testing.T) { testPageExplain(t, browser, p) })
	t.Run("prefix", func(t *testing.T) { testPagePrefix(t, browser, p) })
	t.Run("documents", func(t *testing.T) { testPageDocuments(t, browser, p) })
	t.Run("narrow", func(t *testing.T) { testPageNarrow(t, browser, p) })
	t.Run("theme", func(t *testing.T) { testPageTheme(t, browser, p) })
	t.Run("empty", func(t *testing.T) { testPageEmpty(t, browser) })
	t.Run("empty for a tenant", func(t *testing.T) { testPageEmptyTenant(t, browser) })
	t.Run("charts", func(t *testing.T) { testPageCharts(t, browser) })
	t.Run("severity", func(t *testing.T) { testPageSeverity(t, browser) })
	t.Run("dead", func(t *testing.T) { testPageDead(t, browser) })
	t.Run("source", func(t *testing.T) { testPageSource(t, browser, p) })
	t.Run("ranks", func(t *testing.T) { testPageRanks(t, browser) })
	t.Run("many", func(t *testing.T) { testPageMany(t, browser, p) })
	t.Run("token", func(t *testing.T) { testPageToken(t, browser) })
	t.Run("lost", func(t *testing.T) { testPageLost(t, browser) })
	t.Run("stories", func(t *testing.T) { testPageStories(t, browser) })
	t.Run("replica", func(t *testing.T) { testPageReplica(t, browser) })
	t.Run("ways", func(t *testing.T) { testPageWays(t, browser) })
	t.Run("store", func(t *testing.T) { testPageStore(t, browser) })
	t.Run("shards", func(t *testing.T) { testPageShards(t, browser) })
	t.Run("expected", func(t *testing.T) { testPageExpected(t, browser, p, engine) })
	t.Run("axe", func(t *testing.T) { testPageAxe(t, browser, p) })
}

// TestPageIsOff asks for the page of a server that has none.
func TestPageIsOff(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "ui: {enabled: false}\n")
	for path, want := range map[string]int{"/ui": 404, "/ui/app.js": 404, "/health": 200} {
		if status, text := get(p.url + path); status != want {
			t.Errorf("%s: %d %.100s", path, status, text)
		}
	}
}

// askForPrefixes asks for two prompts that part after two blocks until the server has looked at both,
// and reports how right an answer was.
func askForPrefixes(t *testing.T, p *process) {
	one := recordedTokens(4)
	other := append(recordedTokens(2), one[:2*recordedBlock]...)
	bodies := [2]string{}
	for i, tokens := range [][]uint32{one, other} {
		text, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": tokens})
		must.Succeed(t, err)
		bodies[i] = string(text)
	}
	eventually(t, "the prefixes are not counted", func() (string, bool) {
		for i := range 64 {
			post(t, p.url+"/query", bodies[i/2%2], 200)
		}
		_, text := get(p.url + "/admin/prefixes")
		return text, strings.Count(text, `"depth":4`) == 2
	})
	post(t, p.url+"/feedback", `{"instance_id":"engine-a","medium":"GPU","matched_tokens":64,"cached_tokens":48}`, 200)
}

// testPageLive publishes a batch: the row changes, and the feed shows it.
func testPageLive(t *testing.T, browser context.Context, p *process, engine *ruledEngine) {
	fleet := openTab(t, browser, p.url+"/ui", "light", 1280)
	fleet.await("the rows never came", row("engine-a")+`.includes("synced") && document.querySelectorAll("#sources-body tr").length === 3`)
	fleet.await("the lossy source is not partial", row("lossy")+`.includes("partial")`)
	feed := openTab(t, browser, p.url+"/ui#feed", "light", 1280)
	feed.await("the feed is not there", `document.querySelector("#feed-batches-empty .empty")`)
	// The blocks have a cell of their own: the age of the last batch, in another one, has any digit.
	const blocks = `[...document.querySelectorAll("#sources-body tr")].find((r) => r.innerText.includes("engine-a")).cells[2].innerText`
	fleet.await("the row has not three blocks", blocks+` === "3"`)
	engine.publish(ruledStored(2, 4))
	fleet.await("the row never changed", blocks+` === "5"`)
	feed.await("the batch never came",
		`document.querySelector("#feed-batches").innerText.includes("engine-a / 0") && `+
			`document.querySelector("#feed-batches").innerText.includes("1 store · 2 blocks")`)
	if shown := js[string](fleet, row("<img")); !strings.Contains(shown, hostile) {
		t.Errorf("the hostile name is shown as %q", shown)
	}
	if js[bool](fleet, `document.title === "owned" || document.querySelectorAll("main img").length > 0`) {
		t.Error("the hostile name has become an element")
	}
	js[any](fleet, `document.querySelector("#filter-text").value = "img", document.querySelector("#filter-text").dispatchEvent(new `+
		`Event("input"))`)
	fleet.await("the filter leaves other rows", `document.querySelectorAll("#sources-body tr").length === 1`)
	js[any](fleet, `document.querySelector("#sources-body button").click()`)
	fleet.await("the details are not shown", `document.querySelector("#detail[open]")?.innerText.includes("blue")`)
	js[any](fleet, `document.querySelector(".loss button").click()`)
	fleet.await("the loss is not shown", `document.querySelector("#detail").innerText.includes("It holds 64 tokens on 1 rank.")`)
	fleet.close()
	feed.close()
}

// testPageExplain pastes tokens, and takes a query that the stream showed.
func testPageExplain(t *testing.T, browser context.Context, p *process) {
	tokens, err := json.Marshal(recordedTokens(8))
	must.Succeed(t, err)
	page := openTab(t, browser, p.url+"/ui#explain", "light", 1280)
	page.await("no model is proposed", `document.querySelector("#explain-model").value === "m"`)
	js[any](page, fmt.Sprintf(`document.querySelector("#explain-tokens").value = %q, document.querySelector("#explain").requestSubmit()`,
		tokens))
	page.await("no explanation came", `document.querySelectorAll("#explain-answer .holder").length === 2`)
	text := js[string](page, `document.querySelector("#explain-answer").innerText`)
	for _, want := range []string{"engine-a holds 4 of 8 blocks; the next best, lossy, holds 2.",
		"8 blocks of 16 tokens in a prompt of 128 tokens.", "engine-a", "never announced", "source partial",
		"Ends before block 4, tokens 64 to 79:"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if label := js[string](page, `document.querySelector("#explain-answer svg").getAttribute("aria-label")`); label !=
		"GPU: blocks 0 to 3 of 8" {
		t.Errorf("the strip is %q", label)
	}
	js[any](page, `document.querySelector("#explain-tokens").value = "1 2 3", document.querySelector("#explain").requestSubmit()`)
	page.await("the prompt is not too short",
		`document.querySelector(".verdict[data-level=warn]")?.innerText.includes("The prompt is shorter than one block: it has 3 tokens, `+
			`and a block has 16.")`)
	if text := js[string](page, `document.querySelector("#explain-answer").innerText`); strings.Contains(text, "Holds the whole prompt") ||
		strings.Contains(text, "engine-a") {
		t.Errorf("a prompt of less than one block: %s", text)
	}
	js[any](page, `document.querySelector("#explain-tokens").value = "12 x", document.querySelector("#explain").requestSubmit()`)
	page.await("the mistake is not told",
		`document.querySelector("#explain-answer [role=alert]")?.innerText.includes('"x" is no token id')`)

	eventually(t, "the query is not among the recent ones", func() (string, bool) {
		post(t, p.url+"/query", fmt.Sprintf(`{"model":"m","block_size":16,"token_ids":%s}`, tokens), 200)
		return "", js[bool](page, `document.querySelectorAll("#explain-recent option").length > 1`)
	})
	js[any](page, `document.querySelector("#explain-sample").click()`)
	page.await("no explanation of the recent query",
		`document.querySelectorAll("#explain-answer .holder").length === 2 && document.querySelector("#explain-tokens").disabled`)

	page.view("feed")
	js[any](page, `document.querySelector("#explain-answer").replaceChildren()`)
	eventually(t, "the query is not in the feed", func() (string, bool) {
		post(t, p.url+"/query", fmt.Sprintf(`{"model":"m","block_size":16,"token_ids":%s}`, tokens), 200)
		return "", js[bool](page, `Boolean(document.querySelector("#feed-queries a"))`)
	})
	js[any](page, `document.querySelector("#feed-queries a").click()`)
	page.await("the feed leads to no explanation",
		`!document.querySelector("#view-explain").hidden && document.querySelectorAll("#explain-answer .holder").length === 2`)
	page.close()
}

// testPageExpected reports prompts for an instance: its details say what became of them.
func testPageExpected(t *testing.T, browser context.Context, p *process, engine *ruledEngine) {
	report := func(tokens []uint32) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": tokens, "instance_id": "engine-a",
			"ttl": "10m"})
		must.Succeed(t, err)
		post(t, p.url+"/routed", string(text), 204)
	}
	report(recordedTokens(5)) // the engine has four blocks
	engine.publish(ruledStored(4, 5))
	report([]uint32{31: 7}) // two blocks that never come
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", row("engine-a")+`.includes("synced")`)
	js[any](page, `[...document.querySelectorAll("#sources-body tr")].find((r) => `+
		`r.innerText.includes("engine-a")).querySelector("button").click()`)
	const shown = `(document.querySelector("#detail-expected")?.innerText.replace(/\s+/g, " ") ?? "")`
	page.await("what routers reported is not there", shown+`.includes("Expected now 32 tokens") && `+shown+
		`.includes("Confirmed 100 % (16 tokens)")`)
	for _, want := range []string{"Prompts 2", "New tokens 48", "Delay p50", "Delay p99", "Wasted 0 tokens", "ttl 10 s"} {
		if got := js[string](page, shown); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	page.close()
}

// testPageKeyboard filters, opens a row and asks for an explanation with keys alone.
func testPageKeyboard(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui", "dark", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	page.press(kb.Tab)
	if first := js[string](page, `document.activeElement.textContent`); first != "Skip to the content" {
		t.Errorf("the first stop is %q", first)
	}
	page.tabTo("#filter-text")
	page.press("lossy")
	page.await("the filter does nothing", `document.querySelectorAll("#sources-body tr").length === 1`)
	page.tabTo("#sources-head button")
	page.tabTo("#sources-body button")
	page.press(kb.Enter)
	page.await("the row does not open",
		`document.querySelector("#detail[open]")?.innerText.includes("lossy, rank 0") && document.querySelector("#detail-timeline")`)
	page.tabTo(".loss button")
	page.press(kb.Escape)
	page.await("Escape does not close it",
		`!document.querySelector("#detail[open]") && document.activeElement.matches("#sources-body button")`)

	js[any](page, `document.querySelector(".skip").focus()`)
	page.tabTo(`nav a[href="#explain"]`)
	page.press(kb.Enter)
	page.await("the view does not change", `!document.querySelector("#view-explain").hidden`)
	page.tabTo("#explain-tokens")
	page.press("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
	page.tabTo("#explain button[type=submit]")
	page.press(kb.Enter)
	page.await("no explanation came", `document.querySelector("#explain-answer")?.innerText.includes("1 block of 16 tokens")`)

	page.view("prefixes")
	page.await("there is no tree",
		`document.querySelectorAll("[role=treeitem]").length === 3 && document.querySelector("#prefixes-body").innerText.includes("75 %")`)
	js[any](page, `document.querySelector("nav a").focus()`)
	page.tabTo("[role=treeitem]")
	at := func(key, level, expanded string) {
		t.Helper()
		page.press(key)
		if got := js[string](page, `document.activeElement.ariaLevel + document.activeElement.ariaExpanded`); got != level+expanded {
			t.Errorf("after %q the focus is at %s, want %s", key, got, level+expanded)
		}
	}
	at(kb.ArrowDown, "2", "null")
	at(kb.ArrowLeft, "1", "true")
	at(kb.ArrowLeft, "1", "false")
	at(kb.ArrowRight, "1", "true")
	at(kb.End, "2", "null")
	page.close()
}

// testPageNarrow looks at each view on a phone and on a tablet: nothing is wider than the screen.
func testPageNarrow(t *testing.T, browser context.Context, p *process) {
	for _, width := range []int64{360, 768} {
		page := openTab(t, browser, p.url+"/ui", "light", width)
		page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
		for _, view := range pageViews {
			page.view(view)
			if has := js[int64](page, `document.documentElement.scrollWidth`); has > width {
				t.Errorf("%s is %d pixels wide on a screen of %d", view, has, width)
			}
		}
		page.close()
	}
}

// pageViews are the views of the page.
var pageViews = []string{"fleet", "prefixes", "explain", "feed", "server"}

// view goes to a view, and waits until it has something to show.
func (p *tab) view(name string) {
	p.t.Helper()
	js[any](p, fmt.Sprintf(`location.hash = %q`, name))
	p.await(name+" shows nothing",
		fmt.Sprintf(`!document.querySelector("#view-%s").hidden && document.querySelector("#view-%[1]s").innerText.length > 40 && `+
			`!document.querySelector("#view-%[1]s .loading")`, name))
}

// testPageTheme follows the system, then the choice of the operator, also after a reload.
func testPageTheme(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui", "dark", 1280)
	background := `getComputedStyle(document.documentElement).backgroundColor`
	page.await("the page is not dark", background+` === "rgb(16, 20, 24)"`)
	page.paint("light")
	page.await("the page stays dark", background+` === "rgb(245, 246, 247)"`)
	js[any](page, `document.querySelector("#theme").click(), document.querySelector("#theme").click()`)
	page.await("the choice does nothing", background+` === "rgb(16, 20, 24)"`)
	page.reload()
	page.await("the choice is forgotten", `document.documentElement.dataset.theme === "dark" && `+background+` === "rgb(16, 20, 24)"`)
	js[any](page, `localStorage.clear()`)
	page.close()
}

// testPageToken opens the page of a server with credentials: it loads, and asks for a token.
func testPageToken(t *testing.T, browser context.Context) {
	p, _ := pagedFleet(t, "auth: {file: "+credentialsFile(t, "operator admin '*'", "of-blue admin blue")+"}\n")
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	give := func(token string) {
		page.await("no token is asked for", `document.querySelector("#login[open]") && document.activeElement.id === "login-token"`)
		page.press(token + kb.Enter)
	}
	give("wrong")
	page.await("the wrong token is not told",
		`document.querySelector("#banner button")?.innerText === "Give a token" || `+
			`document.querySelector("#login-why").innerText.includes("not known")`)
	if js[bool](page, `!document.querySelector("#login[open]")`) {
		js[any](page, `document.querySelector("#banner button").click()`)
	}
	give("operator")
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	page.view("server")
	const process = `document.querySelector("#process")?.innerText.replace(/\s+/g, " ")`
	const auth = `document.querySelector("#auth")?.innerText.replace(/\s+/g, " ")`
	page.await("the process is not shown",
		`/CPU [0-9.]+ of \d+ CPUs? Memory \d+ MiB of .* Connections \d+ of [\d,]+, from 1 address Pages open 1/.test(`+process+`)`)
	page.await("the credentials are not counted", `/auth.file .* Credentials 2 tokens by role admin: 2 by tenant every tenant: 1, blue: 1 `+
		`No credentials nothing None, on this machine nothing/.test(`+auth+`)`)
	page.axe("server with credentials")
	page.view("fleet")
	if js[bool](page, `Object.keys(localStorage).length > 0 || document.cookie !== ""`) {
		t.Error("the token outlives the tab")
	}
	js[any](page, `sessionStorage.setItem("conductor.token", "of-blue")`)
	page.reload()
	page.await("a tenant sees other rows than its own", `document.querySelectorAll("#sources-body tr").length === 1 && `+row("<img")+
		`.includes("blue")`)
	page.view("server")
	if text := js[string](page, `document.querySelector("#view-server").innerText`); strings.Contains(text, "Snapshots") ||
		strings.Contains(text, "Replicas") || strings.Contains(text, "auth.file") || strings.Contains(text, "CPU") {
		t.Errorf("a tenant sees the server as a whole: %s", text)
	}
	page.forgive() // the answers 401 are in the console
	page.close()
}

// testPageLost kills the server and starts it again on its address.
func testPageLost(t *testing.T, browser context.Context) {
	address, err := freeport.Address() // which no connection takes meanwhile
	must.Succeed(t, err)
	p, _ := pagedFleet(t, "", address+"=conductor")
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	must.Succeed(t, p.cmd.Process.Kill())
	p.cmd.Wait()
	page.await("the loss is not told",
		`document.querySelector("#banner").innerText.includes("Next attempt in") && document.querySelector("#ready").innerText === "No `+
			`connection"`)
	startProcess(t, "serve", "--listen", address+"=conductor")
	js[any](page, `document.querySelector("#banner button").click()`)
	page.await("the page does not come back",
		`document.querySelector("#banner").innerText.startsWith("No source is registered") && `+
			`!document.querySelector("#start").hidden`)
	page.forgive() // the failed requests are in the console
	page.close()
}

// testPageDead lets engines go: the page says first how many sources are stale, and leads to them.
func testPageDead(t *testing.T, browser context.Context) {
	one, two := newRuledEngine(t, "one", 0), newRuledEngine(t, "two", 0)
	cmd := command("serve", "--listen", "127.0.0.1:0=conductor", "--stale-after", "200ms")
	cmd.Env = append(cmd.Env, "CONDUCTOR_SHUTDOWN_DRAIN=10m")
	p := startCommand(t, cmd)
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	const pill, banner = `document.querySelector("#ready")`, `document.querySelector("#banner")`
	says := func(level, text string) {
		t.Helper()
		page.await("the banner does not say "+text,
			fmt.Sprintf(`%s.dataset.level === %q && %[1]s.firstChild.innerText === %[3]q && %[4]s.innerText === %[3]q && `+
				`%[4]s.dataset.level === %[2]q`, banner, level, text, pill))
	}
	says("bad", "No source is registered")
	for _, e := range []*ruledEngine{one, two} {
		post(t, p.url+"/register", fmt.Sprintf(`{"endpoint":"tcp://%s","type":"vLLM","modelname":"m","instance_id":%q,"dp_rank":0,`+
			`"block_size":16}`, e.pub.Addr(), e.name), 200)
		e.publish(ruledStored(0, 2))
	}
	page.await("the page does not calm down", banner+`.hidden && `+pill+`.innerText === "Ready"`)
	one.pub.Close()
	says("bad", "1 of 2 sources is stale")
	two.pub.Close()
	says("bad", "2 of 2 sources are stale")
	const cached = `[...document.querySelectorAll(".tile")].find((tile) => tile.innerText.startsWith("Cached"))`
	page.await("the tile is not dim", cached+`.matches(".dim") && `+cached+`.title.startsWith("2 sources stale")`)
	page.view("server")
	js[any](page, banner+`.querySelector("a").click()`)
	page.await("the link does not lead to the sources",
		`!document.querySelector("#view-fleet").hidden && document.querySelector("#filter-state").value === "error" && `+
			`document.querySelectorAll("#sources-body tr").length === 2`)
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	page.await("the drain is not told", pill+`.innerText === "Draining" && `+banner+`.innerText.startsWith("The server is draining")`)
	page.close()
}

// testPageStories plays what operators ask about, on one server: the page shows each finding and
// state, and why the prompt matches no further.
func testPageStories(t *testing.T, browser context.Context) {
	engines := make([]*ruledEngine, len(stories))
	settings := "# fixed: {silentafter: 1s}\nsources:\n"
	hashing := newRuledEngine(t, "engine", 0) // whose hashes the objects of a pool have
	settings += explainSource(hashing, "vLLM", "m", "")
	for i, s := range stories {
		first := uint64(0)
		if s.kind == "Mooncake" {
			first = 1
		}
		engines[i] = newRuledEngine(t, s.name, first)
		settings += explainSource(engines[i], s.kind, "m", s.more)
	}
	p := serveProcess(t, settings)
	hashing.publish(ruledStored(0, 4))
	hashing.settled(p)
	for i, s := range stories {
		s.publish(engines[i])
	}
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	tokens, err := json.Marshal(recordedTokens(4))
	must.Succeed(t, err)
	left := slices.DeleteFunc(slices.Clone(stories), func(s story) bool { return s.name == "silent" }) // while few of many are used
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	deadline := time.After(pagePatience)
	for round := 0; len(left) > 0; round++ {
		post(t, p.url+"/query", fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":[1,2,3]}`, recordedBlock), 200)
		for i, s := range stories {
			if s.each != nil {
				s.each(engines[i], round)
			}
		}
		var shown string
		for shown = js[string](page, row(left[0].name)); len(left) > 0 &&
			left[0].onPage(shown); shown = js[string](page, row(left[0].name)) {
			if left = left[1:]; len(left) == 0 {
				break
			}
		}
		select {
		case <-deadline:
			t.Fatalf("the row of %s shows %q", left[0].name, shown)
		case <-pace.C:
		}
	}
	page.view("explain")
	js[any](page, fmt.Sprintf(`document.querySelector("#explain-model").value = "m", document.querySelector("#explain-size").value = `+
		`"16", document.querySelector("#explain-tokens").value = %q, document.querySelector("#explain").requestSubmit()`, tokens))
	const more = `document.querySelector("#explain-answer > button")`
	page.await("no explanation came", more+`?.hidden === false`)
	js[any](page, more+`.click()`)
	page.await("the other instances are not shown", fmt.Sprintf(`document.querySelectorAll("#explain-answer .answer").length >= %d`,
		len(stories)))
	for _, s := range stories {
		card := js[string](page, fmt.Sprintf(`[...document.querySelectorAll("#explain-answer .answer")].find((a) => `+
			`a.innerText.includes(%q)).innerText`, s.name+"|default|0"))
		if want := strings.ReplaceAll(s.explain, "_", " "); !strings.Contains(card, want) {
			t.Errorf("%s: %q is not in %s", s.name, want, card)
		}
	}
	page.close()
}

// behindPeer is an expression of how many batches the only peer is ahead, as text.
const behindPeer = `[...document.querySelectorAll("#server-body .card")].find((c) => ` +
	`c.innerText.startsWith("Replicas"))?.querySelector("td:last-child").innerText`

// testPageReplica looks at a replica whose peer has applied more: its row has the finding, its peer
// the number of batches, until it has caught up.
func testPageReplica(t *testing.T, browser context.Context) {
	_, second, road := behindServer(t)
	page := openTab(t, browser, second.url+"/ui", "light", 1280)
	page.await("the row has no finding", row("engine")+`.includes("behind")`)
	page.view("server")
	page.await("the peer is not ahead", behindPeer+` === "1"`)
	road.Hold(0)
	page.await("the peer stays ahead", behindPeer+` === "0"`)
	page.view("fleet")
	page.await("the finding stays", `!`+row("engine")+`.includes("behind")`)
	page.close()
}

// onPage reports whether the row of a story's source shows what went wrong.
func (s *story) onPage(shown string) bool {
	want := strings.ReplaceAll(s.doctor, "_", " ")
	switch s.name {
	case "restarted":
		want = "1 restart"
	case "shards":
		want = "Mooncake" // its blocks that lack shards are in the explanation alone
	}
	return strings.Contains(shown, want)
}

// testPageAxe lets axe-core look at each view, light and dark.
func testPageAxe(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	for _, scheme := range []string{"light", "dark"} {
		page.paint(scheme)
		for _, view := range pageViews {
			page.view(view)
			if view == "explain" {
				js[any](page, fmt.Sprintf(`document.querySelector("#explain-tokens").value = %q, `+
					`document.querySelector("#explain").requestSubmit()`, strings.Trim(fmt.Sprint(recordedTokens(8)), "[]")))
				page.await("no explanation came", `document.querySelectorAll("#explain-answer .holder").length === 2`)
			}
			page.axe(view + ", " + scheme)
		}
		page.view("fleet")
		js[any](page, `document.querySelector("#sources-body button").click()`)
		page.axe("details, " + scheme)
		js[any](page, `document.querySelector("#detail-close").click()`)
	}
	page.close()
}
