package docs

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"example.com/conductor/conductor/inspect"
	"example.com/conductor/internal/must"

	kvconductor "example.com/conductor"
	"example.com/conductor/conductor/ui"
)

// read asks for a page by its address below Root.
func read(s *Site, at string) (*httptest.ResponseRecorder, bool) {
	w := httptest.NewRecorder()
	ok := s.Serve(w, httptest.NewRequest(http.MethodGet, Root+at, nil), at)
	return w, ok
}

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	named     = regexp.MustCompile(` id="([^"]+)"`)
)

// TestLinksLead follows each link of each page, to its anchor.
func TestLinksLead(t *testing.T) {
	s := New(kvconductor.Documents)
	page := ui.New()
	ids := make(map[string][]string)
	for at := range s.pages {
		w, _ := read(s, at)
		for _, m := range named.FindAllStringSubmatch(w.Body.String(), -1) {
			if slices.Contains(ids[at], m[1]) {
				t.Errorf("%s has the id %s twice", at, m[1])
			}
			ids[at] = append(ids[at], m[1])
		}
	}
	links, anchors := 0, 0
	for at, p := range s.pages {
		if path.Ext(p.source) != ".md" {
			continue
		}
		w, _ := read(s, at)
		here := &url.URL{Scheme: "http", Host: "server", Path: "/behind/a/proxy" + Root + at}
		for _, m := range reference.FindAllStringSubmatch(w.Body.String(), -1) {
			to, err := here.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			if to.Host != here.Host {
				if to.Scheme != "https" && to.Scheme != "http" {
					t.Errorf("%s leads to %s", at, m[1])
				}
				continue
			}
			links++
			file := strings.TrimPrefix(to.Path, "/behind/a/proxy")
			below, ours := strings.CutPrefix(file, Root)
			switch {
			case ours && s.pages[below] == nil:
				t.Errorf("%s leads to %s, which is not served", at, m[1])
			case ours && to.Fragment != "" && to.Fragment != "content":
				if anchors++; !slices.Contains(ids[below], to.Fragment) {
					t.Errorf("%s leads to %s, and there is no such heading", at, m[1])
				}
			case !ours && file != ui.Root && file != "/openapi.yaml" &&
				!page.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, file, nil), strings.TrimPrefix(file, ui.Root+"/")):
				t.Errorf("%s leads to %s", at, m[1])
			}
		}
	}
	if links < 500 || anchors < 100 {
		t.Errorf("only %d links and %d anchors were followed", links, anchors)
	}
}

// TestPagesHaveTheHeaders requires the policy of the operator's page, and nothing that it forbids.
func TestPagesHaveTheHeaders(t *testing.T) {
	s := New(kvconductor.Documents)
	w := httptest.NewRecorder()
	ui.New().Serve(w, httptest.NewRequest(http.MethodGet, ui.Root, nil), "")
	want := w.Header().Get("Content-Security-Policy")
	for at := range s.pages {
		w, ok := read(s, at)
		h, text := w.Header(), w.Body.String()
		if !ok || w.Code != http.StatusOK || h.Get("Content-Security-Policy") != want || want == "" ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("ETag") == "" {
			t.Errorf("%q: %d %v", at, w.Code, h)
		}
		if !strings.HasPrefix(h.Get("Content-Type"), "text/html") {
			continue
		}
		for _, refused := range []string{" style=", "<style", " onclick=", "raw HTML omitted", "<title> –"} {
			if strings.Contains(text, refused) {
				t.Errorf("%q has %q", at, refused)
			}
		}
		if strings.Count(text, "<script") != 1 || strings.Count(text, "<h1") != 1 {
			t.Errorf("%q has %d scripts and %d titles", at, strings.Count(text, "<script"), strings.Count(text, "<h1"))
		}
	}
	for _, at := range []string{"none", "operations.md", "../README.md", "img", "img/", "docs.go"} {
		if w, ok := read(s, at); ok || w.Body.Len() > 0 {
			t.Errorf("%q is served", at)
		}
	}
}

// TestSlashesAtTheEnd leads from addresses with slashes too many, or one too few, to pages behind a proxy with a prefix.
func TestSlashesAtTheEnd(t *testing.T) {
	s := New(fstest.MapFS{"docs/a.md": {}, "docs/more/b.md": {}, "docs/more/README.md": {}})
	for at, want := range map[string]string{
		"a/": "a", "a//": "a", "more/b/": "more/b", "more": "more/", "more//": "more/", "a/?x=1": "a?x=1", "none/": "", "/": "",
	} {
		here, err := url.Parse("/prefix" + Root + at)
		must.Succeed(t, err)
		w := httptest.NewRecorder()
		ok := s.Serve(w, &http.Request{Method: http.MethodGet, URL: here}, strings.TrimPrefix(here.Path, "/prefix"+Root))
		if !ok && want == "" {
			continue
		}
		to, err := here.Parse(w.Header().Get("Location"))
		if must.Succeed(t, err); w.Code != http.StatusMovedPermanently || to.String() != "/prefix"+Root+want {
			t.Errorf("%s leads to %s with %d", at, to, w.Code)
		}
	}
}

// TestWordsHaveAddresses requires that the operator's page can lead to each reason of an explanation, and to the
// findings that no source has. Package doctor requires headings for the others.
func TestWordsHaveAddresses(t *testing.T) {
	s := New(kvconductor.Documents)
	f := func(page, word string) {
		t.Helper()
		if w, _ := read(s, page); !strings.Contains(w.Body.String(), ` id="`+word+`"`) {
			t.Errorf("%s has no heading %s, and no row of a table that begins with it in code", page, word)
		}
	}
	for _, r := range inspect.Reasons() {
		f("reading-answers", string(r))
	}
	for _, code := range []string{"discovery", "unclaimed", "unclaimed_topic"} { // of ways.js
		f("findings", code)
	}
}

// TestMarkdown renders one page of each kind of link and heading.
func TestMarkdown(t *testing.T) {
	s := New(fstest.MapFS{
		"README.md": {Data: []byte("# Top\n\n" +
			"![A picture](docs/img/a.png) [docs](docs/README.md) [a part](docs/more/README.md#b)\n")},
		"docs/README.md":          {Data: []byte("# Index\n\n[top](../README.md) [page](page.md)\n")},
		"docs/more/README.md":     {Data: []byte("# More\n\n## B\n\n[up](../page.md#what-is-it-a_b) [index](../README.md)\n")},
		"docs/img/a.png":          {Data: []byte("png")},
		"docs/more/source.go":     {Data: []byte("package x")},
		"docs/more/only-text.txt": {Data: []byte("x")},
		"docs/page.md": {Data: []byte("# Page\n\n## What *is* it, `a_b`?\n\n## Again\n\n## Again\n\n## [Linked](more)\n\n" +
			"### ConductorNotReady\n\n" +
			"[code](../cmd/a/main.go) [`main.go`](../cmd/a/main.go) [api](../openapi.yaml) [web](https://example.com/a?b&c) " +
			"[here](#again-1) [folder](more/)\n\n" +
			"<script>alert(1)</script>\n\n| A | B |\n|---|--:|\n| `one_word`, `two.words` | 1 |\n| `again` `--flag x` | 2 |\n\n```sh\n" +
			"curl <table>\n```\n")},
	})
	f := func(at string, want ...string) {
		t.Helper()
		w, ok := read(s, at)
		if !ok {
			t.Fatalf("no %q", at)
		}
		for _, text := range want {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%q lacks %s: %s", at, text, w.Body)
			}
		}
	}
	f("README", `src="img/a.png"`, `<a href="./">docs</a>`, `<a href="more/#b">a part</a>`, `href="../ui"`)
	f("", `<a href="README">top</a>`, `<a href="page">page</a>`, `<title>Index – Conductor</title>`, `aria-current="page"`)
	f("more/", `<a href="../page#what-is-it-a_b">up</a>`, `<a href="../">index</a>`, `href="../../ui/app.css"`, `href="../docs.css"`)
	f("page", `<h2 id="what-is-it-a_b">`, `<h2 id="again">`, `<h2 id="again-1">`, `<h2 id="linked"><a href="more/">Linked</a>`,
		`<h3 id="conductornotready">`,
		"code (cmd/a/main.go) <code>main.go</code> ", `<a href="../openapi.yaml">api</a>`,
		`<a href="https://example.com/a?b&amp;c">web</a>`, `<a href="#again-1">here</a>`, `<a href="more/">folder</a>`,
		`<code id="one_word">`, `<code id="two.words">`, `<td align="right">1</td>`, "<code>again</code> <code>--flag x</code>",
		"curl &lt;table&gt;", `<pre tabindex="0">`, `<li><a href="#linked">Linked</a></li>`)
	if w, _ := read(s, "page"); strings.Contains(w.Body.String(), "alert(1)") {
		t.Error("HTML of a document is in the page")
	}
}
