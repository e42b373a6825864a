package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// testPageWays looks at what leads to sources: an engine that tells where it publishes, one that does
// not, one whose snapshot fails, instances of LMCache with and without a source, and a topic without one. A tenant sees its own.
func testPageWays(t *testing.T, browser context.Context) {
	told, recorded := newRuledEngine(t, "told", 0), newRuledEngine(t, "recorded", 5)
	address, err := freeport.Address()
	must.Succeed(t, err)
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "operator admin,register '*'", "of-blue admin,register blue")+
		"}\n# fixed: {silentafter: 1s}\nsources:\n"+
		"  - {discover: '"+tells(t, told)+"', instance_id: told, block_size: 16}\n"+
		"  - {endpoint: 'bind:tcp://"+address+"', type: vLLM, modelname: m, instance_id: bound, block_size: 16}\n"+
		"  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: 'node:n1', block_size: 16}\n"+
		explainSource(recorded, "vLLM", "m", ", snapshot_endpoint: 'tcp://127.0.0.1:1'"))
	told.publish(ruledStored(0, 2))
	recorded.publish(ruledStored(0, 2))
	as := func(token, path string, body any) {
		t.Helper()
		text, err := json.Marshal(body)
		must.Succeed(t, err)
		if status, answer := askAs(t, "POST", p.url+path, token, "application/json", text); status != 200 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
	}
	as("operator", "/register", map[string]any{"discover": "http://127.0.0.1:1", "instance_id": "deaf"})
	as("of-blue", "/register", map[string]any{"discover": "http://127.0.0.1:1", "instance_id": "deaf-in-blue", "tenant_id": "blue"})
	tokens := make([]uint32, chunkTokens)
	report := func(token, instance string) {
		as(token, "/lmcache/events", map[string]any{"batches": []any{lmcacheReport{
			Instance: instance, Incarnation: 1, Seq: 7, Type: "store", Tier: "l1", Backend: "dram",
			Entries: entriesOf(chunksOf(tokens), 0, 1, "", 0), Time: 1,
		}}})
	}
	report("operator", "node:n1")
	report("operator", hostile)
	report("of-blue", "node-of-blue")

	engine := newBoundEngine(t, address)
	for range 3 {
		engine.publish("kv@"+hostile+"@m", 0)
	}

	axe, err := os.ReadFile("testdata/axe/axe.min.js")
	must.Succeed(t, err)
	open := func(token string, width int64) *tab {
		page := openTab(t, browser, p.url+"/ui", "light", width)
		page.await("no token is asked for", `document.querySelector("#login[open]") && document.activeElement.id === "login-token"`)
		page.press(token + kb.Enter)
		page.await("the targets are not shown",
			`document.querySelectorAll("#targets-body tr").length > 0 && document.querySelectorAll("#reporters-body tr").length > 0`)
		page.forgive() // the first answer was 401
		return page
	}
	text := func(id string) string { return fmt.Sprintf(`document.querySelector(%q).innerText`, id) }
	page := open("operator", 1280)
	for _, wait := range []string{
		// as a state and as a finding
		row("recorded") + `.includes("engine snapshot failed: failed")`, row("recorded") + `.match(/engine snapshot/g).length === 2`,
		text("#targets-body") + `.includes("connection refused")`, `/told\s.*found/s.test(` + text("#targets-body") + `)`,
		text("#targets-count") + ` === "3 targets, 2 waiting"`, text("#reporters-count") +
			` === "3 instances, 2 with reports that no source takes"`,
		text("#findings-list") + `.includes("2 engines")`, text("#findings-list") + `.includes("reports 1 entry of the model m as ")`,
		text("#topics-count") + ` === "1 topic"`,
		`/"kv@.*@m"\s+dp_rank 0 · from 127\.0\.0\.1:\d+ to bind:tcp:.*\s+unclaimed\s+register instance_id .*\s+3\s+/s.test(` +
			text("#topics-body") + `)`,
		text("#findings-list") + `.includes("No source claims the topic")`,
		`/node:n1\s+for default\s+followed\s+7\s+/.test(` + text("#reporters-body") + `)`,
	} {
		page.await("this is not shown: "+wait, wait)
	}
	if shown := js[string](page, text("#reporters-body")); !strings.Contains(shown, hostile) ||
		js[bool](page, `document.title === "owned"`) {
		t.Errorf("the hostile name is shown in %q", shown)
	}
	js[any](page, string(axe)+"; true")
	if found := js[string](page, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.filter((v) => ["serious", `+
		`"critical"].includes(v.impact)).map((v) => v.id + ": " + v.nodes[0].html).join("\n"))`); found != "" {
		t.Error(found)
	}
	js[any](page, `document.querySelector(".skip").focus()`)
	page.tabTo("#findings-list li:first-child button")
	page.press(kb.Enter)
	page.await("the finding leads nowhere", `document.activeElement.id === "title-targets"`)
	page.tabTo(`#targets-body button[aria-label$="of told"]`)
	page.press(kb.Enter)
	page.await("the sources of the target are not shown", `document.querySelectorAll("#sources-body tr").length === 1 && `+row("told")+
		`.includes("synced")`)
	js[any](page, `document.querySelector("#sources-body button").click()`)
	js[any](page, `document.querySelector("#detail-close").click()`)

	// A source for what was reported ends the finding.
	as("operator", "/register", map[string]any{"endpoint": "push:", "type": "LMCache", "modelname": "m", "instance_id": hostile,
		"block_size": 16, "dp_rank": 0})
	page.await("the instance is unclaimed still", text("#reporters-count")+` === "3 instances, 1 with reports that no source takes"`)
	page.close()

	page = open("operator", 360)
	page.await("the findings are not there", `!document.querySelector("#findings").hidden`)
	if width := js[int](page, `document.documentElement.scrollWidth`); width > 360 {
		t.Errorf("the lists are %d pixels wide", width)
	}
	page.close()

	page = open("of-blue", 1280)
	for id, want := range map[string]string{"#targets-body": "deaf-in-blue", "#reporters-body": "node-of-blue"} {
		if shown := js[string](page, text(id)); !strings.Contains(shown, want) ||
			js[int](page, `document.querySelectorAll("`+id+` tr").length`) != 1 {
			t.Errorf("the tenant sees %q", shown)
		}
	}
	if !js[bool](page, `document.querySelector("#topics").hidden`) {
		t.Error("the tenant sees topics without a source")
	}
	page.close()
}
