// Package docs serves the documents of the repository to a browser.
//
//	docs/NAME.md, NAME.md --goldmark, once--> GET /docs/NAME
//	docs/README.md                        --> GET /docs/
//	docs/img/*                            --> GET /docs/img/*
//
// Invariants
//  1. A heading has the id that GitHub gives it, so that a link which works in the repository works here.
//  2. Addresses are relative: the pages work behind a proxy with a prefix.
//  3. The policy of the operator's page holds for these pages too. HTML in a document is left out.
//
// Cost: a page is rendered when it is first asked for, and kept.
package docs

import (
	"bytes"
	_ "embed"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"example.com/conductor/conductor/ui"
)

// Root is the path below which the pages are.
const Root = "/docs/"

// Site serves the documents below Root.
type Site struct {
	files fs.FS
	pages map[string]*page // by their address below Root
}

// page is a file of the site, or a document that becomes one.
type page struct {
	source string // its path in the repository
	once   sync.Once
	file   ui.File // set by once
}

//go:embed docs.css
var sheet []byte

// pictures are the extensions of files that are served as they are.
var pictures = []string{".png", ".svg"}

// New returns a site of the documents and pictures in files, whose paths are those of the repository.
func New(files fs.FS) *Site {
	s := &Site{files: files, pages: make(map[string]*page)}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if ext := path.Ext(name); err == nil && !entry.IsDir() && (ext == ".md" || slices.Contains(pictures, ext)) {
			s.pages[address(name)] = &page{source: name}
		}
		return err
	})
	if err != nil {
		panic("BUG: the embedded documents cannot be listed: " + err.Error())
	}
	style := &page{file: ui.NewFile("docs.css", sheet)}
	style.once.Do(func() {})
	s.pages["docs.css"] = style
	return s
}

// address returns where below Root a file of the repository is. A README is its folder, but that of
// the repository has the address README, since the one of docs is the site's first page.
func address(name string) string {
	below, inDocs := strings.CutPrefix(name, "docs/")
	below = strings.TrimSuffix(below, ".md")
	if folder, is := strings.CutSuffix(below, "README"); is && inDocs {
		return folder
	}
	return below
}

// Serve answers a request for a page by its address below Root, and reports whether there is such a page. If
// there is none, it answers nothing.
func (s *Site) Serve(w http.ResponseWriter, r *http.Request, at string) bool {
	p, ok := s.pages[at]
	if !ok {
		return s.redirect(w, r, at)
	}
	p.once.Do(func() {
		text, err := fs.ReadFile(s.files, p.source)
		if err != nil {
			panic("BUG: an embedded document cannot be read: " + err.Error())
		}
		if path.Ext(p.source) == ".md" {
			p.file = ui.NewFile("page.html", s.render(p.source, text))
		} else {
			p.file = ui.NewFile(p.source, text)
		}
	})
	p.file.Serve(w, r)
	return true
}

// redirect leads to the page whose address has fewer slashes at its end, or one more, and reports whether there is one. The page
// itself would not find its style sheet there, since its addresses are relative; so is ours, because a proxy may have a prefix.
func (s *Site) redirect(w http.ResponseWriter, r *http.Request, at string) bool {
	name := strings.TrimRight(at, "/")
	to := strings.Repeat("../", len(at)-len(name)) + path.Base(name)
	switch {
	case name == "":
		return false
	case s.pages[name] != nil:
	case s.pages[name+"/"] != nil:
		to += "/"
	default:
		return false
	}
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusMovedPermanently)
	return true
}

// frame is what stands around a document.
var frame = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}} – Conductor</title>
<link rel="icon" href="{{.Up}}../ui/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{{.Up}}../ui/app.css">
<link rel="stylesheet" href="{{.Up}}docs.css">
<script src="{{.Up}}../ui/theme.js"></script>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header class="top">
  <a class="brand" href="{{.Up}}../ui"><img src="{{.Up}}../ui/icon.svg" alt="" width="24" height="24"> Conductor</a>
  <nav aria-label="Conductor"><a href="{{.Up}}../ui">Fleet</a> <a href="{{.Up}}./"{{if not .At}} aria-current="page"{{end}}>Docs</a></nav>
</header>
<div class="paper">
{{if .Contents}}<nav class="contents" aria-label="On this page"><ul>
  {{- range .Contents}}<li><a href="#{{.ID}}">{{.Text}}</a></li>{{end}}</ul></nav>
{{end}}<main id="content" tabindex="-1">
{{.Body}}</main>
</div>
</body>
</html>
`))

// framed is what frame shows.
type framed struct {
	At, Title string
	Up        string // leads from the page to Root
	Contents  []section
	Body      template.HTML
}

// render makes a page of a document.
func (s *Site) render(source string, text []byte) []byte {
	at := address(source)
	d := s.convert(source, text)
	var out bytes.Buffer
	//nolint:gosec // of documents of our own, without the HTML in them
	err := frame.Execute(&out, framed{At: at, Title: d.title, Up: up(at), Contents: d.sections, Body: template.HTML(d.html)})
	if err != nil {
		panic("BUG: a page cannot be written: " + err.Error())
	}
	return out.Bytes()
}

// up returns the relative address of Root from a page.
func up(at string) string { return strings.Repeat("../", strings.Count(at, "/")) }
