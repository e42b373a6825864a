package ui

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// ask requests a file, and reports whether there is one.
func ask(p *Page, method, name, tag string) (*httptest.ResponseRecorder, bool) {
	r := httptest.NewRequest(method, Root, nil)
	r.Header.Set("If-None-Match", tag)
	w := httptest.NewRecorder()
	return w, p.Serve(w, r, name)
}

func TestPageHeaders(t *testing.T) {
	p := New()
	for name := range p.files {
		w, ok := ask(p, http.MethodGet, name, "")
		h := w.Header()
		if !ok || w.Code != http.StatusOK || w.Body.Len() == 0 || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d %v", name, w.Code, h)
		}
		if csp := h.Get("Content-Security-Policy"); strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") ||
			!strings.HasPrefix(csp, "default-src 'none';") {
			t.Errorf("%s: policy %s", name, csp)
		}
		if again, _ := ask(p, http.MethodGet, name, h.Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s with its tag: %d", name, again.Code)
		}
		if head, _ := ask(p, http.MethodHead, name, ""); head.Code != http.StatusOK || head.Body.Len() > 0 ||
			head.Header().Get("ETag") != h.Get("ETag") {
			t.Errorf("HEAD %s: %d, %d bytes", name, head.Code, head.Body.Len())
		}
	}
	for name, want := range map[string]string{"": "text/html", "index.html": "text/html", "app.js": "text/javascript",
		"app.css": "text/css", "icon.svg": "image/svg+xml", "vendor/uPlot.LICENSE": "text/plain"} {
		if w, _ := ask(p, http.MethodGet, name, ""); !strings.HasPrefix(w.Header().Get("Content-Type"), want) {
			t.Errorf("%q is %s, want %s", name, w.Header().Get("Content-Type"), want)
		}
	}
	for _, name := range []string{"none.js", "../ui.go", "static/app.js", "vendor", "vendor/", "/app.js"} {
		if w, ok := ask(p, http.MethodGet, name, ""); ok || w.Body.Len() > 0 {
			t.Errorf("%q is served", name)
		}
	}
}

// TestPageNeedsNoOtherOrigin requires that the files of the page name each other and nothing else.
func TestPageNeedsNoOtherOrigin(t *testing.T) {
	p := New()
	reference := regexp.MustCompile(`(?:from|import) "\./([^"]+)"|(?:src|href)="ui/([^"]+)"`)
	address := regexp.MustCompile(`(?:https?:)?//[\w.]+\.\w+`)
	found := map[string]bool{"index.html": true}
	for name, f := range p.files {
		if path.Dir(name) == "vendor" {
			continue
		}
		for _, m := range reference.FindAllSubmatch(f.text, -1) {
			to := string(m[1]) + string(m[2])
			if found[to] = true; p.files[to].text == nil {
				t.Errorf("%s names %s, which does not exist", name, to)
			}
		}
		for _, a := range address.FindAllString(string(f.text), -1) {
			if a != "http://www.w3.org" { // the name of a namespace
				t.Errorf("%s names %s", name, a)
			}
		}
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
			" style=", "<style", " onclick="} {
			if bytes.Contains(f.text, []byte(forbidden)) {
				t.Errorf("%s has %q", name, forbidden)
			}
		}
	}
	for name := range p.files {
		if !found[name] && (strings.HasSuffix(name, ".js") || strings.HasSuffix(name, ".css")) {
			t.Errorf("no file names %s", name)
		}
	}
}

// TestVendoredFiles compares the files of others with the checksums that make ui-vendor wrote.
func TestVendoredFiles(t *testing.T) {
	list, err := fs.ReadFile(static, "static/vendor/SHA256SUMS")
	must.Succeed(t, err)
	files := 0
	for lines := bufio.NewScanner(bytes.NewReader(list)); lines.Scan(); files++ {
		want, name, _ := strings.Cut(lines.Text(), "  ")
		text, err := fs.ReadFile(static, "static/vendor/"+name)
		must.Report(t, err)
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has another checksum", name)
		}
	}
	if files < 3 {
		t.Errorf("%d files", files)
	}
}
