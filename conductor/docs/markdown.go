package docs

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// markdown is GitHub's dialect. Cells of a table are aligned by an attribute, since the policy forbids styles.
var markdown = goldmark.New(goldmark.WithExtensions(
	extension.Linkify, extension.Strikethrough, extension.TaskList,
	extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute)),
))

// document is a document as HTML.
type document struct {
	title    string
	sections []section
	html     []byte
}

// section is a heading of the second level.
type section struct{ ID, Text string }

// scrolls make wide tables and code scroll in themselves, by keyboard too. In the text of a document
// these tags do not occur: goldmark escapes them.
var scrolls = strings.NewReplacer(
	"<table>", `<div class="wide" role="group" aria-label="Table" tabindex="0"><table>`, "</table>", "</table></div>",
	"<pre>", `<pre tabindex="0">`,
)

// convert makes HTML of the document at a path of the repository.
func (s *Site) convert(source string, markup []byte) (d document) {
	root := markdown.Parser().Parse(text.NewReader(markup))
	var links []*ast.Link
	var comments []ast.Node
	ids := make(map[string]bool)
	walk(root, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Heading:
			words := textOf(n, markup)
			id := unused(ids, slug(words))
			n.SetAttributeString("id", []byte(id))
			switch {
			case n.Level == 1 && d.title == "":
				d.title = words
			case n.Level == 2:
				d.sections = append(d.sections, section{id, words})
			}
		case *ast.HTMLBlock:
			if n.HTMLBlockType == ast.HTMLBlockType2 {
				comments = append(comments, n)
			}
		case *ast.Link:
			links = append(links, n)
		case *ast.Image:
			if to, known := s.resolve(source, string(n.Destination)); known {
				n.Destination = []byte(to)
			}
		}
	})
	walk(root, func(n ast.Node) { nameTerms(n, markup, ids) })
	for _, n := range comments {
		n.Parent().RemoveChild(n.Parent(), n)
	}
	for _, n := range links {
		s.lead(source, n, markup)
	}
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, markup, root); err != nil {
		panic("BUG: a document cannot be rendered: " + err.Error())
	}
	d.html = []byte(scrolls.Replace(out.String()))
	return d
}

// walk calls f for every node, a parent before its children.
func walk(root ast.Node, f func(ast.Node)) {
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // f returns no error
		if entering {
			f(n)
		}
		return ast.WalkContinue, nil
	})
}

// textOf returns the words of a node without their markup.
func textOf(n ast.Node, markup []byte) string {
	var b strings.Builder
	walk(n, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(markup))
		case *ast.String:
			b.Write(n.Value)
		}
	})
	return b.String()
}

var noSlug = regexp.MustCompile(`[^\p{L}\p{M}\p{N} _-]`)

// slug returns the id that GitHub makes of the words of a heading.
func slug(words string) string {
	return strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(words), ""), " ", "-")
}

// unused notes an id, with a number behind it if another heading has it: GitHub counts in the same way.
func unused(ids map[string]bool, id string) string {
	free := id
	for i := 1; ids[free]; i++ {
		free = fmt.Sprintf("%s-%d", id, i)
	}
	ids[free] = true
	return free
}

var term = regexp.MustCompile(`^[A-Za-z][\w.-]*$`)

// nameTerms gives words in code in the first cell of a table's row their name as an id, so that the operator's
// page can lead to what a reason or a setting means. The first row that has a word keeps it.
func nameTerms(n ast.Node, markup []byte, ids map[string]bool) {
	row, is := n.(*east.TableRow)
	if !is || row.FirstChild() == nil {
		return
	}
	for c := row.FirstChild().FirstChild(); c != nil; c = c.NextSibling() {
		if code, is := c.(*ast.CodeSpan); is {
			if id := textOf(code, markup); term.MatchString(id) && !ids[id] {
				ids[id] = true
				code.SetAttributeString("id", []byte(id))
			}
		}
	}
}

// lead makes a link of the repository one between pages. A link to a file that is not served becomes its
// words, with the path of the file unless they say it.
func (s *Site) lead(source string, n *ast.Link, markup []byte) {
	to, known := s.resolve(source, string(n.Destination))
	if known {
		n.Destination = []byte(to)
		return
	}
	file := path.Join(path.Dir(source), string(n.Destination))
	says := strings.Contains(textOf(n, markup), path.Base(file))
	parent := n.Parent()
	var last ast.Node = n
	for n.FirstChild() != nil {
		child := n.FirstChild()
		parent.InsertAfter(parent, last, child)
		last = child
	}
	if !says {
		parent.InsertAfter(parent, last, ast.NewString([]byte(" ("+file+")")))
	}
	parent.RemoveChild(parent, n)
}

// resolve returns the address to which a link of a document leads, relative to the document's page, and whether
// it leads to something that is served.
func (s *Site) resolve(source, link string) (to string, known bool) {
	target, anchor, _ := strings.Cut(link, "#")
	if target == "" || strings.Contains(target, ":") { // in the page, or with a scheme
		return link, true
	}
	if anchor != "" {
		anchor = "#" + anchor
	}
	file, at := path.Join(path.Dir(source), target), up(address(source))
	if file == "openapi.yaml" {
		return at + "../openapi.yaml" + anchor, true
	}
	for _, name := range []string{file, path.Join(file, "README.md")} {
		if p, ok := s.pages[address(name)]; ok && p.source == name {
			if to := at + address(name); to != "" {
				return to + anchor, true
			}
			return "./" + anchor, true
		}
	}
	return "", false
}
