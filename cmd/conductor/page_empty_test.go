package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
		filled := filledWith(t, engine, text)
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

// filledWith returns a command with the addresses of an engine, which tells no size of its blocks, and replays none: it is not
// synced before its first batch.
func filledWith(t *testing.T, engine *ruledEngine, command string) string {
	return strings.NewReplacer("http://ENGINE:8000", tells(t, engine), "tcp://ENGINE:5557", "tcp://"+engine.pub.Addr().String(),
		`, "replay_endpoint": "tcp://ENGINE:6557"`, "", "MODEL", "m",
		`"engine-1"}`, `"engine-1", "block_size": 16}`, `"engine-1", "tenant_id"`, `"engine-1", "block_size": 16, "tenant_id"`,
		"--wait", "--block-size 16", "engine-1, ", "engine-1, block_size: 16, ").Replace(command)
}

// testPageEmptyTenant looks at an empty server with tokens of tenants: the commands name the tenant of a token that is not for the
// default one, so that the server takes them.
func testPageEmptyTenant(t *testing.T, browser context.Context) {
	shell, err := exec.LookPath("sh")
	must.Succeed(t, err)
	curl, err := exec.LookPath("curl")
	if err != nil {
		must.Skip(t, "no curl: apt-get install curl")
	}
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, `of-blue admin "blue's","red"`, "of-green admin green",
		"of-both admin a,default", "of-all admin '*'")+"}\n")
	page := openTab(t, browser, p.url+"/ui", "light", 1280)
	const commands = `[...document.querySelectorAll("#start pre")].map((pre) => pre.textContent)`
	const plain = `c.replaceAll("\\u0027", "'").replaceAll("'\\''", "'")` // without the escapes of JSON and of the shell
	open := func(token, tenant string) []string {
		t.Helper()
		js[any](page, fmt.Sprintf(`sessionStorage.setItem("conductor.token", %q)`, token))
		page.reload()
		page.await("the commands of "+token+" have another tenant", commands+`.length === 4 && `+commands+fmt.Sprintf(
			`.every((c) => /tenant/.test(c) === (%[1]q !== "") && `+plain+`.includes(%[1]q))`, tenant))
		return js[[]string](page, commands)
	}
	open("of-both", "")
	open("of-all", "")
	open("of-green", "green")
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("of-blue"), 0o600))
	for _, text := range open("of-blue", "blue's") {
		engine := newRuledEngine(t, "engine-1", 0)
		filled := strings.NewReplacer("FILE", token, "curl ", curl+" --fail --silent --show-error --noproxy '*' ",
			"conductor register ", `"$CONDUCTOR" register `).Replace(filledWith(t, engine, text))
		if strings.HasPrefix(filled, "sources:") {
			configured := serveProcess(t, filled)
			eventually(t, text, func() (string, bool) {
				_, services := get(configured.url + "/services")
				return services, strings.Contains(services, `"TenantID":"blue's"`)
			})
			continue
		}
		run := command()
		run.Env, run.Args, run.Path = append(run.Environ(), "TOKEN=of-blue", "CONDUCTOR="+run.Path), []string{"sh", "-c", filled}, shell
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("%s: %v %s", text, err, out)
		}
		page.await("the engine is not shown", row("engine-1")+`.includes("blue's")`)
		out, err := command("unregister", "engine-1", "--tenant", "blue's", "--server", p.url, "--token-file", token).CombinedOutput()
		if err != nil {
			t.Errorf("%v %s", err, out)
		}
	}
	page.forgive() // the answers 401 are in the console
	page.close()
}
