package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/conductor/internal/must"
)

// testPagePrefix explains a prefix of the tree by one click, and one by keys.
func testPagePrefix(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui#prefixes", "light", 1280)
	page.await("there is no tree", `document.querySelector("[role=treeitem] .node > button")`)
	one := recordedTokens(4)
	prompts := [][]uint32{one, append(recordedTokens(2), one[:2*recordedBlock]...)} // as askForPrefixes has them
	const leaf = `[...document.querySelectorAll("[role=treeitem]")].find((li) => li.ariaLevel === "2")`
	eventually(t, "no query that begins with the prefix is kept", func() (string, bool) {
		for _, tokens := range prompts {
			text, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": tokens})
			must.Succeed(t, err)
			post(t, p.url+"/query", string(text), 200)
		}
		_, text := get(p.url + "/admin/queries")
		return text, strings.Count(text, `"tokens":64`) >= 2
	})
	page.await("there is no leaf", leaf)
	js[any](page, leaf+`.querySelector("button").click()`)
	page.await("the prefix is not explained",
		`!document.querySelector("#view-explain").hidden && / (of|all) 4 blocks/.test(document.querySelector(".verdict")?.innerText) && `+
			`document.querySelector("#explain-tokens").disabled`)
	if chosen := js[string](page, `document.querySelector("#explain-recent").selectedOptions[0].innerText + " " + `+
		`document.querySelector("#explain-model").value`); !strings.HasPrefix(chosen, "Prefix ") ||
		!strings.HasSuffix(chosen, ": the first 64 tokens of recent queries m") {
		t.Errorf("chosen is %q", chosen)
	}

	page.view("prefixes")
	js[any](page, `document.querySelector("#explain-answer").replaceChildren(), document.querySelector("nav a").focus()`)
	page.tabTo("[role=treeitem]")
	page.press(kb.Tab)
	page.press(kb.Enter)
	page.await("the prefix is not explained by keys",
		`!document.querySelector("#view-explain").hidden && document.querySelector(".verdict")`)
	page.close()
}

// testPageDocuments follows the reason of an explanation to the documents, and comes back.
func testPageDocuments(t *testing.T, browser context.Context, p *process) {
	page := openTab(t, browser, p.url+"/ui#explain", "dark", 1280)
	page.await("no model is proposed", `document.querySelector("#explain-model").value === "m"`)
	tokens, err := json.Marshal(recordedTokens(8))
	must.Succeed(t, err)
	js[any](page, fmt.Sprintf(`document.querySelector("#explain-tokens").value = %q, document.querySelector("#explain").requestSubmit()`,
		tokens))
	page.await("no reason is a link", `document.querySelector("#explain-answer .reasons a")`)
	for _, link := range js[[]string](page, `[...document.querySelectorAll("#explain-answer a")].map((a) => a.href)`) {
		address, anchor, _ := strings.Cut(link, "#")
		if status, text := get(address); status != 200 || !strings.Contains(text, ` id="`+anchor+`"`) {
			t.Errorf("%s: %d", link, status)
		}
	}
	page.follow("#explain-answer .reasons a")
	page.await("the documents are not there",
		`location.pathname === "/docs/reading-answers" && document.querySelector(":target") && `+
			`getComputedStyle(document.documentElement).backgroundColor === "rgb(16, 20, 24)"`)
	page.follow(".brand")
	page.await("there is no way back", `location.pathname === "/ui" && document.querySelector("#sources-body tr")`)
	page.close()

	for _, name := range []string{"", "findings", "settings", "semantics", "README"} {
		page := openTab(t, browser, p.url+"/docs/"+name, "light", 360)
		page.await("the page is not there", `document.querySelector("main h1") && document.readyState === "complete"`)
		if width := js[int](page, `document.documentElement.scrollWidth`); width > 360 {
			t.Errorf("/docs/%s is %d pixels wide", name, width)
		}
		page.axe("/docs/" + name)
		page.close()
	}
}
