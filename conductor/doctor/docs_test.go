package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// codes returns the values of the constants FindingX of this package.
func codes(t *testing.T) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "findings.go", nil, 0)
	must.Succeed(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Finding") || len(spec.Values) != 1 {
			return true
		}
		if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
			code, err := strconv.Unquote(value.Value)
			must.Succeed(t, err)
			out = append(out, code)
		}
		return true
	})
	return out
}

// TestFindingsHaveARunbook requires that docs/findings.md has a heading for each code.
func TestFindingsHaveARunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/findings.md")
	must.Succeed(t, err)
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllSubmatch(text, -1) {
		headings[string(m[1])] = true
	}
	known := codes(t)
	if len(known) < 30 {
		t.Errorf("only %d codes were found", len(known))
	}
	for _, code := range known {
		if !headings[code] {
			t.Errorf("docs/findings.md has no heading ### %s", code)
		}
	}
}

// TestRunbooksTellTheSeverity requires that docs/findings.md gives each code the severity that it has.
func TestRunbooksTellTheSeverity(t *testing.T) {
	text, err := os.ReadFile("../../docs/findings.md")
	must.Succeed(t, err)
	told := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)\n\nSeverity: (\w+)\.$`).FindAllSubmatch(text, -1) {
		told[string(m[1])] = string(m[2])
	}
	for _, code := range codes(t) {
		if told[code] != string(SeverityOf(code)) {
			t.Errorf("docs/findings.md gives %s the severity %q, it is %q", code, told[code], SeverityOf(code))
		}
	}
}

// TestAPIKnowsEachCode requires that openapi.yaml lists each code, and no other.
func TestAPIKnowsEachCode(t *testing.T) {
	text, err := os.ReadFile("../../openapi.yaml")
	must.Succeed(t, err)
	m := regexp.MustCompile(`(?m)^    FindingCode:\n      type: string\n      enum: \[(.*)\]$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("openapi.yaml has no FindingCode")
	}
	listed := strings.Split(string(m[1]), ", ")
	for _, code := range codes(t) {
		if !slices.Contains(listed, code) {
			t.Errorf("FindingCode lacks %s", code)
		}
		listed = slices.DeleteFunc(listed, func(one string) bool { return one == code })
	}
	if len(listed) > 0 {
		t.Errorf("FindingCode has %v, which are no codes", listed)
	}
}
