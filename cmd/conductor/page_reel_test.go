package main

import (
	"bytes"
	"cmp"
	"context"
	testflag "flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"example.com/conductor/internal/must"
)

var (
	reel   = testflag.String("reel", "", "directory for screenshots of the page")
	widths = testflag.String("reel.widths", "",
		"take the views whose names this expression matches, whole, at 1440, 768 and 390 pixels, light and dark, instead of the pictures "+
			"of the documents")
	reelFor = testflag.Duration("reel.for", 4*time.Minute, "how long the fleet of the screenshots works before them")
)

// A shot is one screenshot: a view, or a page of the documents, its size in pixels, and the steps before it.
type shot struct {
	name, view, scheme string
	scene              string // one of scenes, "" for the fleet with troubles
	width, height      int64  // height 0 is that of the whole view
	scale              float64
	do, until          string // expressions; "" for none
}

var shots = []shot{
	{"fleet-light", "fleet", "light", "", 1280, 900, 1, "", ""},
	{"fleet-dark", "fleet", "dark", "", 1280, 900, 1, "", ""},
	{"source", "fleet", "light", "", 1280, 1240, 1,
		`[...document.querySelectorAll("#sources-body button")].find((b) => b.innerText.startsWith("decode-3 / ")).click(), ` +
			`document.querySelector(".loss button").click()`,
		`document.querySelector(".loss p")`},
	{"prefixes", "prefixes", "light", "", 1280, 1000, 1, "", `document.querySelector("[role=treeitem]")`},
	{"heat-map", "prefixes", "dark", "", 1280, 640, 1, `document.querySelector(".heatbox").closest(".card").scrollIntoView()`, ""},
	{"explain", "explain", "light", "", 1280, 800, 1, explainShot,
		`document.querySelector("#explain-answer .holder") && (scrollTo(0, document.querySelector("#explain-answer").offsetTop - ` +
			`68), true)`},
	{"feed", "feed", "dark", "", 1280, 720, 1, "",
		`document.querySelectorAll("#feed-batches li").length > 12 && document.querySelectorAll("#feed-queries li").length > 12`},
	{"phone", "fleet", "light", "", 390, 844, 2, `document.querySelector("#title-sources").scrollIntoView()`, ""},
}

// atWidths are shots of the wanted views at the widths of a desk, a tablet and a phone.
func atWidths(wanted *regexp.Regexp) (all []shot) {
	for _, width := range []int64{1440, 768, 390} {
		for _, scheme := range []string{"light", "dark"} {
			for _, s := range []shot{
				{name: "fleet", view: "fleet"},
				{name: "source", view: "fleet", height: 900,
					do: `[...document.querySelectorAll("#sources-body button")].find((b) => b.innerText.startsWith("decode-3 / ` +
						`")).click()`},
				{name: "ranks", view: "fleet", height: 900,
					do: `document.querySelector("#sources-body button[aria-expanded]").click(), ` +
						`document.querySelector("#title-sources").scrollIntoView()`},
				{name: "prefixes", view: "prefixes", until: `document.querySelector("[role=treeitem]")`},
				{name: "explain", view: "explain", do: explainShot, until: `document.querySelector("#explain-answer .holder")`},
				{name: "explain-short", view: "explain",
					do:    `document.querySelector("#explain-tokens").value = "1 2 3", document.querySelector("#explain").requestSubmit()`,
					until: `document.querySelector(".verdict")`},
				{name: "feed", view: "feed", until: `document.querySelectorAll("#feed-queries li").length > 12`},
				{name: "server", view: "server"},
				{name: "healthy", view: "fleet", scene: "healthy"},
				{name: "healthy-server", view: "server", scene: "healthy"},
				{name: "block-size", view: "fleet", scene: "block-size"},
				{name: "dead-engine", view: "fleet", scene: "dead-engine"},
				{name: "dead", view: "fleet", height: 900, scene: "dead"},
				{name: "many", view: "fleet", height: 2400, scene: "many"},
				{name: "empty", view: "fleet", scene: "empty"},
				{name: "empty-server", view: "server", scene: "empty"},
				{name: "docs", view: "docs/"},
				{name: "docs-findings", view: "docs/findings#event_gap", height: 900},
				{name: "docs-settings", view: "docs/settings", height: 1600},
			} {
				s.name, s.width, s.scheme, s.scale = fmt.Sprintf("%s-%d-%s", s.name, width, scheme), width, scheme, 1
				if wanted.MatchString(s.name) {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// explainShot asks about the recent query whose explanation has most to show: ranks that hold a
// part of the prompt, and different reasons.
const explainShot = `(async () => {
	const recent = await fetch("admin/queries").then((r) => r.json());
	let best = {score: -1};
	for (const q of recent.queries.filter((q) => q.kept && q.tokens < 4000)) {
		const body = JSON.stringify({recent: q.id});
		const x = await fetch("admin/explain", {method: "POST", headers: {"Content-Type": "application/json"}, body}).then((r) => r.json());
		if (!x.instances) continue; // the server was busy, or has dropped the query
		const ranks = x.instances.flatMap((i) => i.ranks);
		const reasons = new Set(ranks.flatMap((r) => r.end?.reasons.map((c) => c.reason) ?? []));
		const score = ranks.filter((r) => r.matched > 0 && r.end).length + 3 * reasons.size +
			ranks.filter((r) => r.media.length > 1).length;
		if (score > best.score) best = {score, id: q.id};
	}
	const select = document.querySelector("#explain-recent");
	if (![...select.options].some((o) => o.value === best.id)) select.append(new Option("", best.id));
	select.value = best.id;
	select.dispatchEvent(new Event("change"));
	document.querySelector("#explain").requestSubmit();
})()`

// TestPageReel writes screenshots of a fleet with troubles, for people to look at.
func TestPageReel(t *testing.T) {
	if *reel == "" {
		t.Skip("-reel names no directory")
	}
	must.Succeed(t, os.MkdirAll(*reel, 0o755))
	browser := startBrowser(t)
	all := shots
	if *widths != "" {
		all = atWidths(regexp.MustCompile(*widths))
	}
	servers := make(map[string]*process) // by scene, each started when its first picture is taken
	for _, s := range all {
		if servers[s.scene] == nil {
			servers[s.scene] = scenes[s.scene](t, browser)
		}
		page := s.open(t, browser, servers[s.scene].url)
		if s.do != "" {
			js[any](page, s.do)
			page.forgive() // a recent query may be gone by the time it is explained
		}
		if s.until != "" {
			page.await(s.name+" is not there", s.until)
		}
		if s.height == 0 {
			whole := min(js[int64](page, `document.documentElement.scrollHeight`), 6000)
			must.Succeed(t, chromedp.Do(page.ctx, chromedp.EmulateViewport(s.width, whole, chromedp.EmulateScale(s.scale))))
		}
		<-time.After(time.Second)
		raw, err := chromedp.Run(page.ctx, chromedp.CaptureScreenshot())
		must.Succeed(t, err)
		picture, err := png.Decode(bytes.NewReader(raw))
		must.Succeed(t, err)
		var out bytes.Buffer
		must.Succeed(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, fewColours(picture)))
		must.Succeed(t, os.WriteFile(filepath.Join(*reel, s.name+".png"), out.Bytes(), 0o644))
		t.Logf("%s: %d KB", s.name, out.Len()>>10)
		page.close()
	}
}

// troubledFleet returns a server with a simulated fleet and three engines with troubles of their own.
func troubledFleet(t *testing.T, browser context.Context) *process {
	lossy, wrong, restarted := newRuledEngine(t, "decode-3", 0), newRuledEngine(t, "prefill-9", 0), newRuledEngine(t, "decode-5", 0)
	settings := fmt.Sprintf("index: {ghost_bytes: 128MiB}\nsnapshot: {dir: %q, interval: 20s}\nsources:\n", t.TempDir())
	for _, e := range []*ruledEngine{lossy, wrong, restarted} {
		settings += explainSource(e, "vLLM", "llama-3.3-70b", ", tenant_id: research")
	}
	p := serveProcess(t, settings)
	simulate(t, p)
	lossy.publish(ruledStored(0, 8))
	for i := range 8 {
		wrong.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{i}, "parent_block_hash": nil,
			"token_ids": recordedTokens(1)[:12], "block_size": 12, "medium": "GPU"})
	}
	restarted.publish(ruledStored(0, 6))
	restarted.publish(ruledStored(0, 6))
	restarted.seq = 0
	restarted.publish(ruledStored(0, 3))

	openTab(t, browser, p.url+"/ui#feed", "dark", 1280) // rates and recent queries are collected meanwhile
	<-time.After(*reelFor / 3)
	lossy.seq = 0
	lossy.publish(ruledStored(0, 6))
	<-time.After(*reelFor / 3)
	lossy.seq += 5
	lossy.publish(ruledStored(0, 1))
	<-time.After(*reelFor / 3)
	return p
}

// fewColours returns a picture with 256 of its colours, which makes its file half as large: the most frequent one of each
// part of the colour space, so that a small dot stays green, then those that are most frequent. The others are the
// edges of letters and of lines, and become the nearest colour.
func fewColours(picture image.Image) image.Image {
	bounds := picture.Bounds()
	count := make(map[color.RGBA]int)
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	rank := make(map[color.RGBA]int, len(colours)) // within its part of the colour space
	parts := make(map[color.RGBA]int)
	for _, c := range colours {
		part := color.RGBA{R: c.R >> 5, G: c.G >> 5, B: c.B >> 5}
		rank[c] = min(parts[part], 1)
		parts[part]++
	}
	slices.SortStableFunc(colours, func(a, b color.RGBA) int { return rank[a] - rank[b] })
	var all color.Palette
	for _, c := range colours[:min(256, len(colours))] {
		all = append(all, c)
	}
	nearest := make(map[color.RGBA]uint8, len(count))
	for c := range count {
		nearest[c] = uint8(all.Index(c))
	}
	few := image.NewPaletted(bounds, all)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			few.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	return few
}

// scenes start the servers that pictures are taken of.
var scenes = map[string]func(*testing.T, context.Context) *process{
	"":            troubledFleet,
	"healthy":     healthyFleet,
	"block-size":  func(t *testing.T, _ context.Context) *process { return fleetWith(t, "block-size") },
	"dead-engine": func(t *testing.T, _ context.Context) *process { return fleetWith(t, "dead-engine") },
	"dead":        func(t *testing.T, _ context.Context) *process { return deadServer(t) },
	"many":        func(t *testing.T, _ context.Context) *process { return manySources(t) },
	"empty": func(t *testing.T, _ context.Context) *process {
		return startProcess(t, "serve", "--listen", "127.0.0.1:0=conductor")
	},
}

// simulate lets a simulated fleet work with a server until the test ends.
func simulate(t *testing.T, p *process) {
	lab := filepath.Join(t.TempDir(), "conductor-lab")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", lab, "example.com/conductor/cmd/conductor-lab").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fleet := exec.Command(lab, "simulate", "--server", p.url, "--model", "llama-3.3-70b", "--instances", "10", "--qps", "12", "--duration",
		"1h", "--quiet", "--pool", "--seed", "7",
		"--device-blocks", "2048", "--host-blocks", "1536", "--disk-blocks", "3072", "--settle-every", "0")
	must.Succeed(t, fleet.Start())
	t.Cleanup(func() { fleet.Process.Kill(); fleet.Wait() })
}

// healthyFleet returns a server with a simulated fleet, which works for a while before the pictures.
func healthyFleet(t *testing.T, browser context.Context) *process {
	p := serveProcess(t, "auth: {anonymous: [query], loopback: [admin]}\n")
	simulate(t, p)
	openTab(t, browser, p.url+"/ui#feed", "dark", 1280) // rates are collected meanwhile
	<-time.After(*reelFor / 3)
	return p
}

// fleetWith returns a server with three engines that are well, and one with a trouble.
func fleetWith(t *testing.T, trouble string) *process {
	settings := "stream: {stale_after: 1s}\nsources:\n"
	var engines []*ruledEngine
	for i := range 4 {
		e := newRuledEngine(t, fmt.Sprintf("decode-%d", i), 0)
		settings += explainSource(e, "vLLM", "llama-3.3-70b", "")
		engines = append(engines, e)
	}
	p := serveProcess(t, settings)
	for i, e := range engines[:3] {
		e.publish(ruledStored(0, 2+i))
	}
	switch trouble {
	case "block-size":
		for i := range 8 {
			engines[3].publish(map[string]any{"type": "BlockStored", "block_hashes": []int{i}, "parent_block_hash": nil,
				"token_ids": recordedTokens(1)[:12], "block_size": 12, "medium": "GPU"})
		}
	case "dead-engine":
		engines[3].publish(ruledStored(0, 3))
		engines[3].settled(p)
		engines[3].pub.Close()
	}
	for range 8 {
		post(t, p.url+"/query", fmt.Sprintf(`{"model":"llama-3.3-70b","block_size":%d,"token_ids":%s}`, recordedBlock,
			strings.ReplaceAll(fmt.Sprint(recordedTokens(5)), " ", ",")), 200)
	}
	<-time.After(20 * time.Second) // until the history has a point with them
	return p
}

// manySources returns a server with 1,000 sources: 125 instances of eight ranks, each with a publisher.
func manySources(t *testing.T) *process {
	settings := "sources:\n"
	var engines []*ruledEngine
	for i := range 1000 {
		e := newRuledEngine(t, fmt.Sprintf("decode-%d", i/8), 0)
		settings += explainSource(e, "vLLM", []string{"llama-3.3-70b", "qwen-3-32b"}[i/8%2], fmt.Sprintf(", dp_rank: %d", i%8))
		engines = append(engines, e)
	}
	p := serveProcess(t, settings)
	for i, e := range engines {
		e.publish(ruledStored(0, 1+i%7))
	}
	return p
}

// deadServer returns a server whose engines have stopped.
func deadServer(t *testing.T) *process {
	settings := "stream: {stale_after: 1s}\nsources:\n"
	var engines []*ruledEngine
	for i := range 13 {
		e := newRuledEngine(t, fmt.Sprintf("decode-%d", i), 0)
		settings += explainSource(e, "vLLM", "llama-3.3-70b", "")
		defer e.pub.Close()
		engines = append(engines, e)
	}
	p := serveProcess(t, settings)
	for i, e := range engines {
		e.publish(ruledStored(0, 1+i%5))
	}
	eventually(t, "the engines are not heard", func() (string, bool) {
		_, text := get(p.url + "/services")
		return text, strings.Count(text, `"synced"`) == 13
	})
	return p
}

// open opens what a shot shows, and waits until there are numbers that move.
func (s *shot) open(t *testing.T, browser context.Context, server string) *tab {
	t.Helper()
	path := "/ui#" + s.view
	documents := strings.HasPrefix(s.view, "docs/")
	if documents {
		path = "/" + s.view
	}
	page := openTab(t, browser, server+path, s.scheme, s.width)
	must.Succeed(t, chromedp.Do(page.ctx, chromedp.EmulateViewport(s.width, cmp.Or(s.height, 900), chromedp.EmulateScale(s.scale))))
	if documents {
		page.await("the page is not shown", `document.readyState === "complete" && document.querySelector("main h1")`)
		return page
	}
	page.await("the fleet is not shown", `document.querySelector("#ready").dataset.level !== "none"`)
	page.view(s.view)
	<-time.After(3 * time.Second)
	return page
}
