// Package ui serves the operator's page.
//
//	browser --GET /ui--> Page --embed.FS--> static/index.html, *.js, *.css
//	        --fetch--> /admin/stats, /admin/live, /admin/prefixes, … of the same server
//
// The files hold no data of the fleet, so that they need no credentials. The scripts ask the
// routes under /admin for the data, with the token that the operator gives them.
//
// Invariants
//  1. The page asks no other origin for anything: it works without a network.
//  2. No file has an inline script or style, and no script makes HTML out of text: the policy
//     of the header forbids both.
//
// Cost: the files are hashed once, when a Page is made.
package ui

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// policy is the Content-Security-Policy of the page. Trusted types let no script assign text
// as HTML, so that a name of an instance stays text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// Page serves the files of the page below Root.
type Page struct{ files map[string]File }

// Root is the path of the page. Its files are below it.
const Root = "/ui"

// New reads the embedded files.
func New() *Page {
	p := &Page{files: make(map[string]File)}
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := static.ReadFile(name)
		p.files[strings.TrimPrefix(name, "static/")] = NewFile(name, text)
		return err
	})
	if err != nil {
		panic("BUG: an embedded file cannot be read: " + err.Error())
	}
	return p
}

// Serve answers a request for a file, "" for the page, and reports whether there is such a
// file. If there is none, it answers nothing.
func (p *Page) Serve(w http.ResponseWriter, r *http.Request, name string) bool {
	f, ok := p.files[cmp.Or(name, "index.html")]
	if ok {
		f.Serve(w, r)
	}
	return ok
}

// File is a file for a browser, with its headers.
type File struct {
	text      []byte
	kind, tag string // Content-Type, ETag
}

// NewFile returns a file whose name says what it is. It keeps text.
func NewFile(name string, text []byte) File {
	digest := sha256.Sum256(text)
	return File{text, cmp.Or(kinds[path.Ext(name)], "text/plain; charset=utf-8"), `"` + hex.EncodeToString(digest[:12]) + `"`}
}

// kinds are the media types of files by extension. Those of the machine would differ.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png",
}

// Serve answers a request with the file.
func (f File) Serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.text))
}
