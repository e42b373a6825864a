//go:build !race

// Nothing here runs side by side, and the race detector makes it five times slower.

package kvconductor_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The limits of a package that a reader can hold in the head. Generated files are left out of all of them, test
// files of all but maxColumns.
const (
	maxMethods  = 40  // on a type, those promoted from embedded fields included
	maxExported = 60  // types, functions, variables and constants that a package exports
	maxBackRefs = 24  // per cent of the references between the files of a package, see backReferences
	maxColumns  = 140 // of a line, a tab counted as tabColumns
	tabColumns  = 4

	// A package with fewer references between its files is read from its first line to its last, in any order.
	fewRefs = 100
)

// The rules, as the table of exceptions names them.
const (
	ruleMethods  = "methods"  // of a type: more than maxMethods
	ruleExported = "exported" // of a package: more than maxExported
	ruleEmbedded = "embedded" // of a package: embedded structs that hold a mutex; none is allowed
	ruleBackRefs = "backrefs" // of a package: more than maxBackRefs
	ruleColumns  = "columns"  // of a directory: lines longer than maxColumns; none is allowed
)

// A shape names one thing that breaks a rule: a directory, or a type in it as "conductor.View".
type shape struct{ rule, name string }

// An excess says by how much it does, and where.
type excess struct {
	value int
	where []string
}

// An exception is a row of shapeExceptions.
type exception struct {
	rule, name string
	value      int
}

const exceptionsFile = "architecture_exceptions_test.go"

var updateShape = flag.Bool("update-shape", false, "rewrite "+exceptionsFile+" if no value grows")

// TestShape holds every package to the limits above. What does not keep to them yet stands in shapeExceptions with
// its present value: a value may neither grow nor stay in the table higher than it is, so that the table only ever
// gets shorter. When values fell, this rewrites the table:
//
//	go test . -run Shape -update-shape
func TestShape(t *testing.T) {
	found := map[shape]excess{}
	packages := modulePackages(t)
	for _, p := range packages {
		for s, e := range p.measure() {
			found[s] = e
		}
	}
	for _, name := range goFiles(t) {
		if lines := longLines(name, read(t, name)); len(lines) > 0 {
			s := shape{ruleColumns, path.Dir(name)}
			found[s] = excess{found[s].value + len(lines), append(found[s].where, lines...)}
		}
	}
	if len(packages) < 30 {
		t.Errorf("only %d packages were looked at", len(packages))
	}

	grown, fallen := compareShapes(found, shapeExceptions)
	for _, complaint := range grown {
		t.Error(complaint)
	}
	if *updateShape && len(grown) == 0 {
		if err := os.WriteFile(exceptionsFile, exceptionsSource(found), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	for _, complaint := range fallen {
		t.Error(complaint)
	}
	if len(fallen) > 0 {
		t.Errorf("values fell: run go test . -run Shape -update-shape, and commit %s", exceptionsFile)
	}
}

// compareShapes compares what was measured with the table: grown are values that the table does not allow, fallen
// those that are better than it says.
func compareShapes(found map[shape]excess, table []exception) (grown, fallen []string) {
	allowed := map[shape]int{}
	for _, e := range table {
		s := shape{e.rule, e.name}
		if _, twice := allowed[s]; twice {
			grown = append(grown, fmt.Sprintf("%s: has two rows for %s in %s", e.name, e.rule, exceptionsFile))
		}
		allowed[s] = e.value
	}
	for s, e := range found {
		was, excepted := allowed[s]
		delete(allowed, s)
		switch {
		case !excepted:
			grown = append(grown, fmt.Sprintf("%s: %s: %s", s.name, s.broken(e.value), e.places()))
		case e.value > was:
			grown = append(grown, fmt.Sprintf("%s: %s; the table allows %d: %s", s.name, s.broken(e.value), was, e.places()))
		case e.value < was:
			fallen = append(fallen, fmt.Sprintf("%s: %s fell from %d to %d", s.name, s.rule, was, e.value))
		}
	}
	for s := range allowed {
		fallen = append(fallen, fmt.Sprintf("%s: needs no exception for %s any more", s.name, s.rule))
	}
	slices.Sort(grown)
	slices.Sort(fallen)
	return grown, fallen
}

// broken says which limit a value exceeds.
func (s shape) broken(value int) string {
	switch s.rule {
	case ruleMethods:
		return fmt.Sprintf("the type has %d methods with those of embedded types; the most is %d", value, maxMethods)
	case ruleExported:
		return fmt.Sprintf("the package exports %d names; the most is %d", value, maxExported)
	case ruleEmbedded:
		return fmt.Sprintf("embedded structs that hold a mutex: %d; name the field instead", value)
	case ruleBackRefs:
		return fmt.Sprintf("%d %% of the references between its files run back up; the most is %d %%", value, maxBackRefs)
	case ruleColumns:
		return fmt.Sprintf("lines of more than %d columns: %d; break them", maxColumns, value)
	}
	panic("BUG: no rule " + s.rule)
}

// places lists where, as far as a message can.
func (e excess) places() string {
	const most = 30
	if len(e.where) <= most {
		return strings.Join(e.where, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(e.where[:most], ", "), len(e.where)-most)
}

// exceptionsSource writes the table. Each directory has its rows apart, so that two changes to the table seldom meet.
func exceptionsSource(found map[shape]excess) []byte {
	byDir := map[string][]exception{}
	for s, e := range found {
		dir := s.name
		if s.rule == ruleMethods {
			dir = strings.TrimSuffix(dir, path.Ext(dir)) // the type goes
		}
		byDir[dir] = append(byDir[dir], exception{s.rule, s.name, e.value})
	}
	dirs := make([]string, 0, len(byDir))
	for dir := range byDir {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)

	var b bytes.Buffer
	b.WriteString(`//go:build !race

package kvconductor_test

// shapeExceptions lists what breaks a rule of TestShape, with its present value. The aim is an empty table: take rows
// out, add none. "go test . -run Shape -update-shape" rewrites this file if values only fell. If a rebase conflicts
// here, take the other side's file and run that.
var shapeExceptions = []exception{
`)
	for i, dir := range dirs {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\t// %s\n", dir)
		slices.SortFunc(byDir[dir], func(a, b exception) int { return strings.Compare(a.rule+a.name, b.rule+b.name) })
		for _, e := range byDir[dir] {
			fmt.Fprintf(&b, "\t{%q, %q, %d},\n", e.rule, e.name, e.value)
		}
	}
	b.WriteString("}\n")
	source, err := format.Source(b.Bytes())
	if err != nil {
		panic("BUG: the table does not parse: " + err.Error())
	}
	return source
}

// longLines returns the positions of the lines of a Go file that are longer than maxColumns.
func longLines(name string, source []byte) (out []string) {
	if isGenerated(name, source) {
		return nil
	}
	for i, line := range strings.Split(string(source), "\n") {
		if n := utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t"); n > maxColumns {
			out = append(out, fmt.Sprintf("%s:%d", name, i+1))
		}
	}
	return out
}

func isGenerated(name string, source []byte) bool {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.PackageClauseOnly|parser.ParseComments)
	return err == nil && ast.IsGenerated(file)
}

// A checked package has its syntax and its types: of files that are neither tests nor generated, though the others
// are there to check them against.
type checked struct {
	dir   string // within the repository
	set   *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// modulePackages type-checks every package of the module. Packages that they import come from the build cache, which
// go list fills where it has to, so that this needs neither the network nor a library.
func modulePackages(t *testing.T) (out []checked) {
	t.Helper()
	set := token.NewFileSet()
	listed, importing := listPackages(t, set)
	for _, l := range listed {
		dir := strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, module), "/")
		sources := map[string]string{}
		for _, name := range l.GoFiles {
			name = path.Join(dir, name)
			sources[name] = string(read(t, name))
		}
		if dir == "" {
			dir = "."
		}
		p, err := checkPackage(set, importing, dir, l.ImportPath, sources)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// A listedPackage is what go list says of one package.
type listedPackage struct {
	ImportPath, Export string
	GoFiles            []string
	Module             *struct{ Main bool }
}

// listPackages returns the packages of the module, and an importer of them and of all they import.
func listPackages(t *testing.T, set *token.FileSet) (ours []listedPackage, importing types.Importer) {
	t.Helper()
	cmd := exec.Command("go", "list", "-buildvcs=false", "-export", "-deps", "-json=ImportPath,Export,GoFiles,Module", "./...")
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			ours = append(ours, p)
		}
	}
	return ours, importer.ForCompiler(set, "gc", func(imported string) (io.ReadCloser, error) {
		file := exports[imported]
		if file == "" {
			return nil, fmt.Errorf("go list wrote no types of %s", imported)
		}
		return os.Open(file)
	})
}

// checkPackage type-checks one package of files that are given as text.
func checkPackage(set *token.FileSet, importing types.Importer, dir, importPath string, sources map[string]string) (checked, error) {
	names := make([]string, 0, len(sources))
	for name := range sources {
		names = append(names, name)
	}
	slices.Sort(names)
	p := checked{dir: dir, set: set, info: &types.Info{
		Defs:  map[*ast.Ident]types.Object{},
		Uses:  map[*ast.Ident]types.Object{},
		Types: map[ast.Expr]types.TypeAndValue{},
	}}
	var all []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(set, name, sources[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return p, err
		}
		all = append(all, file)
		if !ast.IsGenerated(file) {
			p.files = append(p.files, file)
		}
	}
	config := types.Config{Importer: importing}
	var err error
	p.types, err = config.Check(importPath, set, all, p.info)
	return p, err
}

// measure returns what breaks a rule in the package.
func (p checked) measure() map[shape]excess {
	found := map[shape]excess{}
	exported := 0
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				object := p.info.Defs[n]
				if object == nil {
					break
				}
				if object.Parent() == p.types.Scope() && object.Exported() {
					exported++
				}
				if count := methods(object); count > maxMethods {
					found[shape{ruleMethods, p.dir + "." + n.Name}] = excess{count, []string{p.position(n)}}
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) == 0 && holdsMutex(p.info.TypeOf(field.Type), map[types.Type]bool{}) {
						s := shape{ruleEmbedded, p.dir}
						found[s] = excess{found[s].value + 1, append(found[s].where, p.position(field))}
					}
				}
			}
			return true
		})
	}
	if exported > maxExported {
		found[shape{ruleExported, p.dir}] = excess{exported, nil}
	}
	if share, order := p.backReferences(); share > maxBackRefs {
		found[shape{ruleBackRefs, p.dir}] = excess{share, []string{"at best in the order " + strings.Join(order, " ")}}
	}
	return found
}

func (p checked) position(n ast.Node) string {
	at := p.set.Position(n.Pos())
	return fmt.Sprintf("%s:%d", filepath.ToSlash(at.Filename), at.Line)
}

// methods returns how many methods can be called on a variable of the type that object declares, 0 if it is no type.
func methods(object types.Object) int {
	name, ok := object.(*types.TypeName)
	if !ok || name.IsAlias() {
		return 0
	}
	if _, isParameter := name.Type().(*types.TypeParam); isParameter {
		return 0
	}
	if types.IsInterface(name.Type()) {
		return types.NewMethodSet(name.Type()).Len()
	}
	return types.NewMethodSet(types.NewPointer(name.Type())).Len()
}

// holdsMutex reports whether t is a mutex, or a struct that holds one in a field or a field of a field. Pointers are
// followed where they are embedded, because Lock is promoted through them as well.
func holdsMutex(t types.Type, seen map[types.Type]bool) bool {
	if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := types.Unalias(t).(*types.Named); ok {
		switch name := named.Obj(); {
		case name.Pkg() != nil && name.Pkg().Path() == "sync" && (name.Name() == "Mutex" || name.Name() == "RWMutex"):
			return true
		case seen[t]:
			return false
		}
		seen[t] = true
	}
	if array, ok := t.Underlying().(*types.Array); ok {
		return holdsMutex(array.Elem(), seen)
	}
	fields, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for field := range fields.Fields() {
		if _, isPointer := types.Unalias(field.Type()).(*types.Pointer); isPointer && !field.Embedded() {
			continue
		}
		if holdsMutex(field.Type(), seen) {
			return true
		}
	}
	return false
}

// backReferences measures how far the package can be read from top to bottom. A reference is a place in one file
// that names a function, type, variable, constant, field or method that another file declares. If the files are
// laid in a row, entry points first, most references run down the row: callers stand above what they call. Those
// that run up are the ones for which a reader has to turn back. No order is written anywhere, so the package gets
// the best that can be found: from the order of names each file is moved to where it saves the most, until none
// saves any. It returns the share of references that run up in per cent, and that order; 0 for a package with
// fewer than fewRefs references.
//
// A high share means that files need each other in both directions, so a reader has to know all of them to follow
// one. Then move the part that both need into a file of its own, or hand the lower one a value instead of the
// whole.
func (p checked) backReferences() (share int, order []string) {
	count := map[string]map[string]int{} // references from a file to another
	total := 0
	for _, file := range p.files {
		from := path.Base(p.set.Position(file.Pos()).Filename)
		count[from] = map[string]int{}
		order = append(order, from)
	}
	slices.Sort(order)
	for id, object := range p.info.Uses {
		if object.Pkg() != p.types || !object.Pos().IsValid() {
			continue
		}
		if object.Parent() != nil && object.Parent() != p.types.Scope() { // fields and methods have no parent
			continue
		}
		from, to := path.Base(p.set.Position(id.Pos()).Filename), path.Base(p.set.Position(object.Pos()).Filename)
		if from == to || count[from] == nil || count[to] == nil { // the same file, or a generated one
			continue
		}
		count[from][to]++
		total++
	}
	if total < fewRefs {
		return 0, order
	}

	for improved := true; improved; {
		improved = false
		for i := range order {
			file, bestAt, best := order[i], i, 0
			saved := 0
			for j := i + 1; j < len(order); j++ { // behind order[j]
				if saved += count[order[j]][file] - count[file][order[j]]; saved > best {
					bestAt, best = j, saved
				}
			}
			saved = 0
			for j := i - 1; j >= 0; j-- { // in front of order[j]
				if saved += count[file][order[j]] - count[order[j]][file]; saved > best {
					bestAt, best = j, saved
				}
			}
			if best > 0 {
				order = slices.Insert(slices.Delete(order, i, i+1), bestAt, file)
				improved = true
			}
		}
	}

	back := 0
	for i, from := range order {
		for _, to := range order[:i] {
			back += count[from][to]
		}
	}
	return 100 * back / total, order
}

// TestShapeRules holds that each rule refuses what it is there to refuse.
func TestShapeRules(t *testing.T) {
	set := token.NewFileSet()
	_, importing := listPackages(t, set)
	measure := func(sources map[string]string) map[shape]excess {
		t.Helper()
		p, err := checkPackage(set, importing, "room", "example.com/room", sources)
		if err != nil {
			t.Fatal(err)
		}
		return p.measure()
	}
	repeat := func(n int, line string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, line+"\n", i)
		}
		return b.String()
	}
	f := func(rule, name string, want int, sources map[string]string) {
		t.Helper()
		got := measure(sources)
		if want > 0 && got[shape{rule, name}].value != want || want == 0 && len(got) != 0 {
			t.Errorf("%s of %s: want %d, got %v", rule, name, want, got)
		}
	}
	one := func(source string) map[string]string { return map[string]string{"a.go": "package room\n" + source} }

	base := "type Base struct{}\n" + repeat(20, "func (*Base) M%d() {}") + "type Whole struct { *Base }\n"
	f(ruleMethods, "", 0, one(base+repeat(20, "func (Whole) N%d() {}")))
	f(ruleMethods, "room.Whole", 41, one(base+repeat(21, "func (Whole) N%d() {}")))
	f(ruleMethods, "room.Face", 41, one("type Face interface {\n"+repeat(41, "M%d()")+"}"))

	f(ruleExported, "", 0, one(repeat(60, "const C%d = 0")+"type hidden struct{ X int }\nfunc (hidden) Y() {}"))
	f(ruleExported, "room", 61, one(repeat(30, "const C%d = 0")+repeat(30, "func F%d() {}")+"var V int"))
	generated := one(repeat(60, "const C%d = 0"))
	generated["b.pb.go"] = "// Code generated by protoc-gen-go. DO NOT EDIT.\n\npackage room\n\nvar V int\n"
	f(ruleExported, "", 0, generated)

	withSync := func(source string) map[string]string { return one("import \"sync\"\n" + source) }
	f(ruleEmbedded, "", 0, withSync("type A struct { mu sync.Mutex }\ntype B struct { a A; at *A }\ntype C struct { B *B }"))
	f(ruleEmbedded, "", 0, withSync("type A struct { mu *sync.Mutex }\ntype B struct { A }"))
	f(ruleEmbedded, "room", 1, withSync("type A struct { sync.Mutex }"))
	f(ruleEmbedded, "room", 1, withSync("type A struct { mu sync.RWMutex }\ntype B struct { a [2]A }\ntype C struct { *B }"))
	f(ruleEmbedded, "room", 1, one("import \"net/http\"\nvar x struct { *http.Server }"))

	rooms := func(up int) map[string]string {
		return map[string]string{
			"a.go": "package room\nfunc top() {}\nfunc a() {\n" + strings.Repeat("bottom()\n", 100-up) + "}",
			"b.go": "package room\nfunc bottom() {}\nfunc b() {\n" + strings.Repeat("top()\n", up) + "}",
		}
	}
	f(ruleBackRefs, "", 0, rooms(24))
	f(ruleBackRefs, "room", 25, rooms(25))
	f(ruleBackRefs, "room", 25, rooms(75)) // the other order is better

	for line, want := range map[string]int{
		"//" + strings.Repeat("x", 138):          0,
		"//" + strings.Repeat("é", 138):          0,
		"//" + strings.Repeat("x", 139):          1,
		"//" + strings.Repeat("\t", 34) + "xx":   0,
		"//" + strings.Repeat("\t", 34) + "xxx":  1,
		"\n//" + strings.Repeat("x", 139) + "\n": 1,
	} {
		if got := longLines("a.go", []byte("package a\n"+line)); len(got) != want {
			t.Errorf("%q: %v", line, got)
		}
		if got := longLines("a.go", []byte("// Code generated by hand. DO NOT EDIT.\n\npackage a\n"+line)); len(got) != 0 {
			t.Errorf("%q in a generated file: %v", line, got)
		}
	}
}

// TestShapeExceptions holds that values of the table can neither grow nor be left too high.
func TestShapeExceptions(t *testing.T) {
	wide := shape{ruleColumns, "room"}
	f := func(value int, table []exception, wantGrown, wantFallen int) {
		t.Helper()
		found := map[shape]excess{}
		if value > 0 {
			found[wide] = excess{value, []string{"room/a.go:1"}}
		}
		if grown, fallen := compareShapes(found, table); len(grown) != wantGrown || len(fallen) != wantFallen {
			t.Errorf("%d with %v: grown %q, fallen %q", value, table, grown, fallen)
		}
	}
	three := []exception{{ruleColumns, "room", 3}}
	f(0, nil, 0, 0)
	f(1, nil, 1, 0)
	f(3, three, 0, 0)
	f(4, three, 1, 0)
	f(2, three, 0, 1)
	f(0, three, 0, 1)
	f(3, append(three, three...), 1, 0)

	source := exceptionsSource(map[shape]excess{wide: {value: 3}, {ruleMethods, "room/inner.Type"}: {value: 41}})
	for _, want := range []string{
		"\t// room\n\t{\"columns\", \"room\", 3},\n",
		"\t// room/inner\n\t{\"methods\", \"room/inner.Type\", 41},\n",
	} {
		if !strings.Contains(string(source), want) {
			t.Errorf("the table has no %q:\n%s", want, source)
		}
	}
}
