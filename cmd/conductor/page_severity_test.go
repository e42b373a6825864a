package main

import (
	"context"
	"fmt"
	"testing"
)

// testPageSeverity looks at a server with information alone, then with an error finding of a source that is synced: the
// figure, the panel, the row and the state of the page all say the same.
func testPageSeverity(t *testing.T, browser context.Context) {
	one, two, sized := newRuledEngine(t, "one", 0), newRuledEngine(t, "two", 0), newRuledEngine(t, "sized", 0)
	p := serveProcess(t, "sources:\n"+explainSource(one, "vLLM", "m", "")+explainSource(two, "vLLM", "m", "")+
		explainSource(sized, "vLLM", "m", ""))
	one.publish(ruledStored(0, 2))
	one.settled(p)
	two.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{7}, "parent_block_hash": nil, "token_ids": recordedTokens(1),
		"block_size": recordedBlock, "medium": "GPU"}) // another hash of the same tokens
	sized.publish(ruledStored(0, 1))
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	page.await("the rows never came", `document.querySelectorAll("#sources-body tr").length === 3`)
	const tile = `[...document.querySelectorAll(".tile")].find((tile) => tile.innerText.startsWith("Findings"))`
	says := func(text, level, pill string) {
		t.Helper()
		page.await("the figure does not say "+text, fmt.Sprintf(
			`%s.innerText.replace(/\s+/g, " ") === %q && %[1]s.dataset.level === %[3]q`, tile, "Findings "+text, level))
		page.await("the state of the page is not "+pill, fmt.Sprintf(`document.querySelector("#ready").dataset.level === %q`, pill))
	}
	const dot = `[...document.querySelectorAll("#sources-body tr")].find((r) => r.innerText.includes("%s")).querySelector(".dot")` +
		`.dataset.level`
	painted := func(instance, level string) {
		t.Helper()
		page.await(instance+" is not "+level, fmt.Sprintf(dot+` === %q`, instance, level))
	}
	says("1 for information", "none", "ok")
	painted("one", "ok")
	painted("two", "ok")
	page.await("the panel does not say info", `document.querySelector("#findings-list li").innerText.startsWith("info")`)

	for i := range 64 { // most of the last ones
		sized.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{2000 + i}, "parent_block_hash": nil,
			"token_ids": recordedTokens(1)[:12], "block_size": 12, "medium": "GPU"})
	}
	page.await("the error is not the first of the panel",
		`document.querySelector("#findings-list li").innerText.startsWith("error") && `+tile+`.dataset.level === "bad"`)
	painted("sized", "bad")
	page.await("the page is green", `document.querySelector("#ready").dataset.level === "bad" && `+
		`document.querySelector("#banner").innerText.startsWith("1 of 3 sources has an error finding")`)
	js[any](page, `document.querySelector("#banner a").click()`)
	page.await("the banner does not lead to the source",
		`document.querySelectorAll("#sources-body tr").length === 1 && `+row("sized")+` !== ""`)
	// A second source with the same finding has a sentence of its own.
	for i := range 64 {
		two.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{3000 + i}, "parent_block_hash": nil,
			"token_ids": recordedTokens(2)[:recordedBlock+4], "block_size": recordedBlock + 4, "medium": "GPU"})
	}
	const panel = `document.querySelector("#findings-list")`
	page.await("a source is under another one's sentence", fmt.Sprintf(
		`%s.innerText.includes("sized, rank 0: events announce blocks of 12 ") && `+
			`%[1]s.innerText.includes("two, rank 0: events announce blocks of %d ")`, panel, recordedBlock+4))
	page.close()
}
