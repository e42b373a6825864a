package main

import (
	"context"
	"fmt"
	neturl "net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/conductor/internal/must"
)

// startBrowser starts a headless Chromium, whose tabs are opened in its context.
func startBrowser(t *testing.T, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && program == "" {
			program = found
		}
	}
	if program == "" {
		must.Skip(t, "no chromium: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(pagePatience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	t.Cleanup(stop)
	browser, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	must.Succeed(t, chromedp.Do(browser, chromedp.Navigate("about:blank")))
	return browser
}

// tab is a page that is open. Its problems are errors in the console, and requests to other
// origins than that of the server.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // guarded by mu
}

// openTab opens a page of a server, such as /ui#fleet.
func openTab(t *testing.T, browser context.Context, url, scheme string, width int64) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	p := &tab{t: t, ctx: ctx}
	at, err := neturl.Parse(url)
	must.Succeed(t, err)
	origin := "http://" + at.Host
	must.Succeed(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.note("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
		case *runtime.EventConsoleAPICalled:
			p.note("console.%s", e.Type)
		case *cdplog.EventEntryAdded:
			p.note("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, origin+"/") {
				p.note("request to %s", e.Request.URL)
			}
		}
	}))
	_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	must.Succeed(t, err)
	p.paint(scheme)
	must.Succeed(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, 800), chromedp.Navigate(url)))
	return p
}

func (p *tab) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// reload loads the page again and waits until it is there. An expression that runs meanwhile fails.
func (p *tab) reload() {
	p.t.Helper()
	must.Succeed(p.t, chromedp.Do(p.ctx, chromedp.Reload()))
}

// follow goes where a link leads, and waits until the page is there.
func (p *tab) follow(link string) {
	p.t.Helper()
	must.Succeed(p.t, chromedp.Do(p.ctx, chromedp.Navigate(js[string](p, fmt.Sprintf(`document.querySelector(%q).href`, link)))))
}

// paint makes the system light or dark.
func (p *tab) paint(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	must.Succeed(p.t, err)
}

// forgive forgets the problems so far: a test made them.
func (p *tab) forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = nil
}

// close requires that the page had no problem, and closes it.
func (p *tab) close() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range p.problems {
		p.t.Error(problem)
	}
	must.Report(p.t, chromedp.Cancel(p.ctx))
}

// js evaluates an expression in the page.
func js[T any](p *tab, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// await waits until an expression of a truth holds.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	deadline := time.After(pagePatience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !js[bool](p, "Boolean("+expression+")") {
		select {
		case <-again.C:
		case <-deadline:
			p.t.Fatalf("%s: %s", what, js[string](p, "document.body.innerText.slice(0, 2000)"))
		}
	}
}

// axe looks for what hinders people with a screen reader or a keyboard.
func (p *tab) axe(what string) {
	p.t.Helper()
	if !js[bool](p, `"axe" in window`) {
		text, err := os.ReadFile("testdata/axe/axe.min.js")
		must.Succeed(p.t, err)
		js[any](p, string(text)+"; true")
	}
	found := js[string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations
		.filter((v) => ["serious", "critical"].includes(v.impact))
		.map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html + " " + n.failureSummary).join("\n")).join("\n"))`)
	if found != "" {
		p.t.Errorf("%s: %s", what, found)
	}
}

// press types keys.
func (p *tab) press(keys string) {
	p.t.Helper()
	must.Succeed(p.t, chromedp.Do(p.ctx, chromedp.KeyEvent(keys)))
}

// tabTo presses Tab until an element that a selector matches has the focus. Each element on the
// way must be seen to have it.
func (p *tab) tabTo(selector string) {
	p.t.Helper()
	var way []string
	for range 60 {
		p.press(kb.Tab)
		at := js[struct {
			Name    string
			There   bool
			Visible bool
		}](p, `(() => {
			const el = document.activeElement, box = el.getBoundingClientRect();
			const s = getComputedStyle(el.getAttribute("role") === "treeitem" ? el.firstElementChild : el);
			return {name: el.tagName + "#" + el.id, there: el.matches(`+"`"+selector+"`"+`),
				visible: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 &&
					box.width > 0 && box.bottom > 0 && box.top < innerHeight};
		})()`)
		if way = append(way, at.Name); !at.Visible {
			p.t.Errorf("the focus is not seen at %s", at.Name)
		}
		if at.There {
			return
		}
	}
	p.t.Fatalf("Tab does not reach %s: %v", selector, way)
}

// pagePatience bounds how long the page may take to show something.
const pagePatience = 4 * time.Minute
