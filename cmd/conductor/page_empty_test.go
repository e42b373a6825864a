package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// testPageEmpty looks at a server without a source: the page has the commands that register one, with the address at
// which the browser reaches the server, and each of them does.
func testPageEmpty(t *testing.T, browser context.Context) {
	shell, err := exec.LookPath("sh")
	must.Succeed(t, err)
	curl, err := exec.LookPath("curl")
	if err != nil {
		must.Skip(t, "no curl: apt-get install curl")
	}
	p := startProcess(t, "serve", "--listen", "127.0.0.1:0=conductor")
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	const banner = `document.querySelector("#banner")`
	page.await("nothing says that there is no source", banner+`.innerText.startsWith("No source is registered")`)
	page.await("the link does not lead to the commands",
		`document.querySelector(`+banner+`.querySelector("a").getAttribute("href"))?.matches("#start")`)
	page.await("the charts have nothing to show, and are there", `document.querySelector("#charts").hidden`)
	const commands = `[...document.querySelectorAll("#start pre")].map((pre) => pre.textContent)`
	page.await("the commands are not there", commands+`.length === 4`)
	page.axe("empty")

	for i, text := range js[[]string](page, commands) {
		js[any](page, fmt.Sprintf(`navigator.clipboard.writeText = async (text) => { window.copied = text; }, `+
			`document.querySelectorAll("#start button")[%d].click()`, i))
		page.await("the command is not copied", fmt.Sprintf(`window.copied === %q`, text))
		engine := newRuledEngine(t, "engine-1", 0)
		filled := strings.NewReplacer("http://ENGINE:8000", tells(t, engine), "tcp://ENGINE:5557", "tcp://"+engine.pub.Addr().String(),
			`, "replay_endpoint": "tcp://ENGINE:6557"`, "", "MODEL", "m",
			// This engine tells no size of its blocks, and replays none: it is not synced before its first batch.
			`"engine-1"}`, `"engine-1", "block_size": 16}`, "--wait", "--block-size 16",
			"engine-1, ", "engine-1, block_size: 16, ").Replace(text)
		at := p.url
		var cmd *exec.Cmd
		said := new(bytes.Buffer)
		switch words := strings.Fields(filled); words[0] {
		case "sources:":
			at = serveProcess(t, filled).url
		case "conductor":
			cmd = command(words[1:]...)
		default:
			cmd = exec.Command(shell, "-c", strings.Replace(filled, "curl ", curl+" --fail --silent --show-error --noproxy '*' ", 1))
		}
		if cmd != nil {
			if !strings.Contains(text, p.url) {
				t.Errorf("%s is not about %s", text, p.url)
			}
			cmd.Stdout, cmd.Stderr = said, said
			must.Succeed(t, cmd.Start())
		}
		engine.publish(ruledStored(0, 1))
		eventually(t, text, func() (string, bool) {
			_, ready := get(at + "/ready")
			return ready, strings.Contains(ready, "1 source is synced")
		})
		if cmd == nil {
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v %s", text, err, said)
		}
		page.await("the engine is not shown", row("engine-1")+`.includes("synced") && document.querySelector("#start").hidden`)
		if out, err := command("unregister", "engine-1", "--server", p.url).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
		page.await("the engine is there still", `!document.querySelector("#start").hidden`)
	}
	page.close()

	// A proxy with a prefix is part of the address.
	server, err := url.Parse(p.url)
	must.Succeed(t, err)
	prefixed := httptest.NewServer(http.StripPrefix("/kv", httputil.NewSingleHostReverseProxy(server)))
	defer prefixed.Close()
	page = openTab(t, browser, prefixed.URL+"/kv/ui", "dark", 390)
	page.await("the commands lack the prefix", commands+fmt.Sprintf(`.every((c) => c.startsWith("sources:") || c.includes("%s/kv"))`,
		prefixed.URL)+` && `+commands+`.length === 4`)
	if width := js[int](page, `document.documentElement.scrollWidth`); width > 390 {
		t.Errorf("the commands are %d pixels wide", width)
	}
	page.axe("empty, on a phone")
	page.close()
}
