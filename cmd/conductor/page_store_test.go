package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/internal/redistest"
)

// testPageStore looks at the card of the store: while it is up, with two replicas, and once it is
// away.
func testPageStore(t *testing.T, browser context.Context) {
	shared := redistest.Start(t, "--requirepass", "secret")
	engine := newRuledEngine(t, "engine", 0)
	settings := "store: {url: 'redis://:secret@" + shared.Addr + "'}\nsources:\n" + explainSource(engine, "vLLM", "m", "")
	one, other := serveProcess(t, settings), serveProcess(t, settings)
	card := `(document.querySelector("#store")?.innerText ?? "")`
	page := openTab(t, browser, one.url+"/ui", "light", 1280)
	page.view("server")
	page.await("the replicas are not there", `document.querySelectorAll("#store tbody tr").length === 2`)
	text := js[string](page, card)
	for _, want := range []string{"Up since", shared.Addr, other.url, one.url, "this server"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the card shows the password: %s", text)
	}
	shared.Kill()
	page.await("the card does not say that the store is away", card+`.includes("Down since")`)
	page.close()
}

// testPageShards looks at the card of the shards.
func testPageShards(t *testing.T, browser context.Context) {
	f := newShardFleet(t, 2, 1, "")
	page := openTab(t, browser, f.replicas[0].url+"/ui", "light", 1280)
	page.view("server")
	page.await("the shards are not there", `document.querySelectorAll("#shards tbody tr").length === 6`)
	const card = `document.querySelector("#shards").innerText`
	page.await("the card", fmt.Sprintf(`%s.includes("m5") && %[1]s.split("serving, 1 of 1 source synced").length === %d`, card,
		shardModels+1))
	page.close()
}
