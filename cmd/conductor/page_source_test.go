package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// testPageSource opens a source, leaves it with the back button and with Escape, and comes to it by its address.
func testPageSource(t *testing.T, browser context.Context, p *process) {
	const shown = `(document.querySelector("#detail[open]")?.innerText.replace(/\s+/g, " ") ?? "")`
	at := "#fleet?source=" + url.QueryEscape("lossy|default|0")
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	open := func() {
		t.Helper()
		js[any](page, `[...document.querySelectorAll("#sources-body tr")].find((r) => `+
			`r.innerText.includes("lossy")).querySelector("button").click()`)
		page.await("the source is not shown", shown+`.includes("lossy, rank 0") && location.hash === "`+at+`"`)
	}
	open()
	for _, want := range []string{"Live tcp://127.0.0.1:", "Replay none", "Registered by the settings", "5 batches lost",
		"→ partial gap unrecoverable", "1 gap"} {
		page.await("the source does not say "+want, shown+fmt.Sprintf(".includes(%q)", want))
	}
	js[any](page, `history.back()`)
	page.await("the back button does not leave it", `!document.querySelector("#detail[open]") && location.hash !== "`+at+`"`)
	open()
	// The event that tells of the end of the first dialog comes after the second has begun.
	js[any](page, `new Promise((done) => {
		document.querySelector("#detail").addEventListener("close", () => done(document.title = ""), { once: true });
		addEventListener("hashchange", () => [...document.querySelectorAll("#sources-body tr")]
			.find((r) => r.innerText.includes("lossy")).querySelector("button").click(), { once: true });
		history.back();
	})`)
	page.await("the source that was opened again is not shown", shown+`.includes("lossy, rank 0") && location.hash === "`+at+
		`" && document.title.startsWith("lossy")`)
	page.press(kb.Escape)
	page.await("Escape does not leave it", `!document.querySelector("#detail[open]") && location.hash !== "`+at+`"`)
	page.close()

	page = openTab(t, browser, p.url+"/ui"+at, "light", 1280)
	page.await("the address does not lead to the source", shown+`.includes("5 batches lost") && document.title.startsWith("lossy, rank 0")`)
	js[any](page, `document.querySelector("#detail-close").click()`)
	page.await("it does not close",
		`!document.querySelector("#detail[open]") && location.hash === "#fleet" && document.title === "Conductor"`)
	js[any](page, `location.hash = "#fleet?source=gone%7Cdefault%7C0"`)
	page.await("a source that is gone", shown+`.includes("This source is not here")`)
	page.close()
}

// testPageRanks looks at an instance with three ranks, which is one row that opens, at the attention groups of one, and at the settings.
func testPageRanks(t *testing.T, browser context.Context) {
	settings := "stream: {stale_after: 1h}\nlimits: {max_tenant_sources: 7}\nsources:\n"
	ranked := newRuledEngine(t, "ranked", 0)
	settings += explainSource(ranked, "vLLM", "m", ", dp_rank: 1")
	for _, rank := range []int{0, 2} {
		settings += fmt.Sprintf("  - {endpoint: 'tcp://127.0.0.1:%d', type: vLLM, modelname: m, instance_id: ranked, block_size: 16, "+
			"dp_rank: %d}\n", rank+1, rank)
	}
	settings += "  - {endpoint: 'tcp://127.0.0.1:9', type: vLLM, modelname: m, instance_id: single, block_size: 16}\n"
	p := serveProcess(t, settings)
	ranked.publish(ruledStored(0, 2))
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	const rows = `[...document.querySelectorAll("#sources-body tr")].map((r) => r.innerText.replace(/\s+/g, " "))`
	page.await("the ranks are not one row", rows+`.length === 2 && `+rows+`[0].includes("3 ranks") && `+rows+
		`[0].includes("2 of 3 connecting") && `+rows+`[1].includes("single / 0")`)
	page.await("the blocks are not those of all ranks", `document.querySelector("#sources-body tr").cells[2].innerText === "2"`)
	if count := js[string](page, `document.querySelector("#sources-count").innerText`); count != "4 sources" {
		t.Errorf("there are %q", count)
	}
	page.tabTo("#sources-body button")
	page.press(kb.Enter)
	page.await("the row does not open", rows+`.length === 5 && `+rows+
		`[2].includes("ranked / 1") && document.activeElement.getAttribute("aria-expanded") === "true"`)
	page.press(kb.Enter)
	page.await("the row does not close", rows+`.length === 2`)
	js[any](page, `location.hash = "#fleet?state=synced"`)
	page.await("the filter does not find the rank", rows+`.length === 1 && `+rows+`[0].includes("ranked / 1")`)

	ranked.publish(ruledStored(0, 4, "group_idx", 0, "kv_cache_spec_kind", "full_attention"), ruledStored(2, 4, "group_idx", 1,
		"kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 17), ruledStored(0, 4, "group_idx", 2))
	page.await("the blocks of the groups do not come", `document.querySelector("#sources-body tr").cells[2].innerText === "6"`)
	js[any](page, `location.hash = "#fleet?source=ranked%7Cdefault%7C1"`)
	const groups = `[...document.querySelectorAll("#detail-groups tbody tr")].map((r) => r.innerText.replace(/\s+/g, " ").trim())` +
		`.join("; ")`
	page.await("the attention groups are not shown",
		groups+` === "0 full attention none 16 4; 1 sliding window 17 16 2; 2 not named unknown unknown 0"`)
	js[any](page, `document.querySelector("#detail-close").click()`)

	page.view("server")
	const settingsCard = `(document.querySelector("#settings")?.innerText.replace(/\s+/g, " ") ?? "")`
	page.await("the settings are not there", settingsCard+`.includes("limits.max_tenant_sources") && `+settingsCard+
		`.includes("settings at the default")`)
	if js[bool](page, settingsCard+`.includes("snapshot.interval")`) ||
		js[int](page, `document.querySelectorAll("#settings details tbody tr").length`) < 50 {
		t.Error("the settings at their defaults are not folded")
	}
	page.close()
}

// testPageMany shows a thousand sources in a page that has three, and logs how long a change of all of them takes.
func testPageMany(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	for _, ranks := range []int{1, 8} {
		took := js[[]float64](page, fmt.Sprintf(`Promise.all([import("/ui/live.js"), import("/ui/fleet.js")]).then(([{ state }, fleet]) => {
			const ranks = %d, like = state.rows.values().next().value, took = [];
			for (let change = 0; change < 12; change++) {
				state.rows = new Map();
				for (let i = 0; i < 1000; i++) {
					const instance_id = "engine-" + Math.floor(i / ranks), source = instance_id + "|default|" + i %% ranks;
					const findings = i %% 9 ? [] : [{code: "event_gap", severity: "warning", text: "batches are lost"}];
					state.rows.set(source, {...like, source, instance_id, tenant_id: "default", dp_rank: i %% ranks, findings,
						blocks: (i * 7919 + change * 31) %% 100003, events_per_s: (i + change) %% 97});
				}
				const began = performance.now();
				fleet.draw();
				took.push(performance.now() - began);
				document.querySelector("#sources").offsetHeight; // the layout
			}
			return took;
		})`, ranks))
		t.Logf("1,000 sources, %d of each instance: the scripts take %.0f ms at first, %.1f at best", ranks, took[0], slices.Min(took))
		if got := js[int](page, `document.querySelectorAll("#sources-body tr").length`); got != 100 {
			t.Errorf("%d rows are shown", got)
		}
	}
	page.close()
}
