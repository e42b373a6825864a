package main

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"example.com/conductor/internal/must"
)

// testPageCharts looks at the charts of a server with two models: all show the same time, which is chosen with the model,
// and the part of the tokens that was cached is one number.
func testPageCharts(t *testing.T, browser context.Context) {
	one, two := newRuledEngine(t, "one", 0), newRuledEngine(t, "two", 0)
	p := serveProcess(t, "sources:\n"+explainSource(one, "vLLM", "small", "")+explainSource(two, "vLLM", "large", ""))
	one.publish(ruledStored(0, 2))
	two.publish(ruledStored(0, 4))
	one.settled(p)
	two.settled(p)
	tokens, err := json.Marshal(recordedTokens(4))
	must.Succeed(t, err)
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 2`)
	for _, model := range []string{"small", "large"} {
		post(t, p.url+"/query", fmt.Sprintf(`{"model":%q,"block_size":16,"token_ids":%s}`, model, tokens), 200)
	}
	const (
		tile = `[...document.querySelectorAll(".tile")].find((tile) => tile.innerText.startsWith("%s")).innerText.replace(/\s+/g, " ")`
		last = `[...document.querySelectorAll("#%s-legend .key")].find((key) => key.innerText.startsWith("%s")).innerText`
	)
	cached, charted := fmt.Sprintf(tile, "Cached"), fmt.Sprintf(last, "hits", "Cached")
	page.await("three of four blocks were cached", charted+` === "Cached 75 %"`)
	page.await("the tile says something else", cached+` === "Cached 75 % of asked tokens, last hour"`)
	if got := js[string](page, fmt.Sprintf(tile, "Instances")); got != "Instances 2 2 ranks" {
		t.Errorf("the tile of instances says %q", got)
	}
	if got := js[string](page, fmt.Sprintf(tile, "Synced")); got != "Synced all of 2 sources" {
		t.Errorf("the tile of synced sources says %q", got)
	}
	const times = `new Set([...document.querySelectorAll(".chart")].map((c) => c.ariaLabel.match(/ over (.+?)\./)[1])).size`
	page.await("the charts show different times", times+` === 1`)

	choose := func(id, value string) {
		js[any](page, fmt.Sprintf(`document.querySelector("#%s").value = %q, document.querySelector("#%[1]s").dispatchEvent(new `+
			`Event("input"))`, id, value))
	}
	choose("charts-model", "small")
	page.await("the chart is not that of the model", charted+` === "Cached 50 %" && `+
		fmt.Sprintf(last, "tiers", "Device")+` === "Device 2"`)
	choose("charts-range", "300")
	page.await("the tile does not follow", cached+` === "Cached 50 % of asked tokens, last 5 min, small"`)
	page.await("nothing says why a chart is empty",
		`document.querySelector("#answers-chart").dataset.none === "Kept for all models together" && `+times+` === 1`)
	page.axe("charts of a model")
	choose("charts-model", "")
	page.await("the charts do not come back", cached+` === "Cached 75 % of asked tokens, last 5 min"`)
	page.close()
}
