package main

import (
	"context"
	"encoding/json"
	testflag "flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// description is what a collector says of a metric.
type description struct {
	name, help string
	labels     []string // constant ones too
}

// descriptions returns the metrics that a server with TLS, a store and a folder of sources describes, whether it has
// series of them now or not.
func descriptions(t *testing.T) (all []description) {
	t.Helper()
	loaded := &config.Loaded{Config: config.Default()}
	loaded.Config.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: config.Conductor}}
	loaded.Config.TLS.Cert, loaded.Config.TLS.Key = newAuthority(t, "ca").issue("server", 2, time.Now().Add(time.Hour))
	loaded.Config.Shutdown.Drain = 0
	loaded.Config.Discovery.SourcesDir = t.TempDir()
	loaded.Config.Store.URL = "redis://127.0.0.1:1" // where none is
	loaded.Config.Cluster.Mode = config.Shards
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var text []string
	must.Succeed(t, serve(ctx, loaded, nil, zerolog.New(io.Discard),
		func(_ *conductor.Conductor, _ *server.Servers, metrics *prometheus.Registry) {
			descs := make(chan *prometheus.Desc)
			go func() {
				metrics.Describe(descs)
				close(descs)
			}()
			for d := range descs {
				text = append(text, d.String())
			}
			stop()
		}))
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant := regexp.MustCompile(`([a-z_]+)="`)
	seen := map[string]bool{}
	for _, d := range text {
		m := form.FindStringSubmatch(d)
		if m == nil {
			t.Fatalf("a description of another form: %s", d)
		}
		if seen[m[1]] { // once more, or with another value of a constant label
			continue
		}
		seen[m[1]] = true
		help, err := strconv.Unquote(m[2])
		must.Succeed(t, err)
		labels := strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' })
		for _, c := range constant.FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, c[1])
		}
		all = append(all, description{m[1], help, labels})
	}
	slices.SortFunc(all, func(a, b description) int { return strings.Compare(a.name, b.name) })
	return all
}

// described returns the labels of each metric that descriptions returns. Histograms and summaries are there under the
// names of their series.
func described(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, d := range descriptions(t) {
		labels := append(slices.Clone(d.labels), "instance", "job")
		all[d.name] = append(slices.Clone(labels), "quantile")
		all[d.name+"_bucket"] = append(slices.Clone(labels), "le")
		all[d.name+"_count"], all[d.name+"_sum"] = labels, labels
	}
	all["conductor_build_info"] = append(all["conductor_build_info"], "version")
	return all
}

var rewrite = testflag.Bool("rewrite", false, "write the table of docs/metrics.md")

// TestMetricsReference compares the table of docs/metrics.md with the metrics of a server. -rewrite writes it.
func TestMetricsReference(t *testing.T) {
	const begin, end = "<!-- metrics: written by make docs -->\n", "<!-- end of metrics -->"
	name := filepath.Join(repository, "docs/metrics.md")
	text, err := os.ReadFile(name)
	must.Succeed(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s lacks the markers of the table", name)
	}
	var rows strings.Builder
	rows.WriteString("\n| Metric | Labels | Meaning |\n|---|---|---|\n")
	n := 0
	for _, d := range descriptions(t) {
		if !strings.HasPrefix(d.name, "conductor_") {
			continue
		}
		n++
		labels := ""
		if len(d.labels) > 0 {
			labels = "`" + strings.Join(d.labels, "`, `") + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", d.name, labels, strings.ReplaceAll(d.help, "|", `\|`))
	}
	if n < 100 {
		t.Errorf("only %d metrics were found", n)
	}
	if want := head + begin + rows.String() + "\n" + end + tail; *rewrite {
		must.Succeed(t, os.WriteFile(name, []byte(want), 0o644))
	} else if want != string(text) {
		t.Errorf("the table of docs/metrics.md is stale: run make docs")
	}
}

// TestDocumentedMetrics requires that documents name no metric that a server does not have.
func TestDocumentedMetrics(t *testing.T) {
	exported, n := described(t), 0
	pages, err := filepath.Glob(filepath.Join(repository, "docs/*.md"))
	must.Succeed(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must.Succeed(t, err)
		if filepath.Base(page) == "envoy.md" {
			continue // its metrics are the picker's, whose module has a test of its own
		}
		for _, m := range regexp.MustCompile("`(conductor_[a-z_]*[a-z])[`{]").FindAllStringSubmatch(string(text), -1) {
			if n++; exported[m[1]] == nil {
				t.Errorf("docs/%s: no server exports %s", filepath.Base(page), m[1])
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d names of metrics were found", n)
	}
}

var (
	selector  = regexp.MustCompile(`\b((?:conductor|dynamo|process|go)_[a-z_0-9]+)(\{[^}]*\})?`)
	matcher   = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping  = regexp.MustCompile(`\bby \(([^)]*)\)`)
	templated = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}`)
)

// checkExpression holds that each metric of a PromQL expression is exported, with each label that
// selectors, groupings and texts name.
func checkExpression(t *testing.T, where, expr string, exported map[string][]string, texts ...string) (metrics int) {
	t.Helper()
	var known []string
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		labels, ok := exported[m[1]]
		if !ok {
			t.Errorf("%s: no server exports %s", where, m[1])
		}
		known = append(known, labels...)
		metrics++
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
	if metrics == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	var asked []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		asked = append(asked, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
	}
	for _, text := range texts {
		for _, m := range templated.FindAllStringSubmatch(text, -1) {
			asked = append(asked, m[1])
		}
	}
	for _, l := range asked {
		if !slices.Contains(known, l) {
			t.Errorf("%s: no metric of %q has the label %s", where, expr, l)
		}
	}
	return metrics
}

// TestAlerts holds each alert: what it names is exported, it is complete, docs/alerts.md has its
// entry, and its unit tests let it fire and let it be.
func TestAlerts(t *testing.T) {
	t.Parallel()
	exported := described(t)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	readYAML(t, "deploy/prometheus/alerts.yaml", &rules)
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Want []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, "deploy/prometheus/alerts_test.yaml", &tests)
	fires, quiet := make(map[string]bool), make(map[string]bool)
	for _, one := range tests.Tests {
		for _, a := range one.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Want) > 0
			quiet[a.Name] = quiet[a.Name] || len(a.Want) == 0
		}
	}
	manual, err := os.ReadFile(filepath.Join(repository, "docs/alerts.md"))
	must.Succeed(t, err)
	seen := make(map[string]bool)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] {
				t.Errorf("%s: there are two", r.Alert)
			}
			seen[r.Alert] = true
			checkExpression(t, r.Alert, r.Expr, exported, r.Annotations["summary"], r.Annotations["description"])
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" ||
				r.Annotations["description"] == "" {
				t.Errorf("%s: incomplete: %v %v", r.Alert, r.Labels, r.Annotations)
			}
			if want := "https://example.com/conductor/blob/main/docs/alerts.md#" +
				strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
			}
			entry := regexp.MustCompile(`(?ms)^### ` + r.Alert + `\n\nSeverity ` + r.Labels["severity"] + `\. .+?^- Look at: .+?^- Do: `)
			if !entry.Match(manual) {
				t.Errorf("%s: docs/alerts.md has no entry of the right form", r.Alert)
			}
			if !fires[r.Alert] || !quiet[r.Alert] {
				t.Errorf("%s: alerts_test.yaml lets it fire: %t, lets it be: %t", r.Alert, fires[r.Alert], quiet[r.Alert])
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (Conductor[A-Z]\w+)$`).FindAllSubmatch(manual, -1) {
		if !seen[string(m[1])] {
			t.Errorf("docs/alerts.md has an entry for %s, which is no alert", m[1])
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// readYAML reads a file of the repository.
func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, name))
	must.Succeed(t, err)
	must.Succeed(t, yaml.Unmarshal(text, into))
}

// TestDashboards holds that each dashboard is JSON with panels under ids of their own, in rows that
// fit, and that what its queries and variables name is exported.
func TestDashboards(t *testing.T) {
	exported := described(t)
	files, err := filepath.Glob(filepath.Join(repository, "deploy/grafana/*.json"))
	must.Succeed(t, err)
	uids := make(map[string]string)
	for _, file := range files {
		name := filepath.Base(file)
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		var board struct {
			UID, Title string
			Panels     []struct {
				ID          int
				Type, Title string
				GridPos     struct{ W, X int }
				Datasource  struct{ UID string }
				Targets     []struct{ Expr, LegendFormat string }
			}
			Templating struct {
				List []struct{ Type, Definition string }
			}
		}
		must.Succeed(t, json.Unmarshal(text, &board))
		if board.Title == "" || board.UID == "" || uids[board.UID] != "" {
			t.Errorf("%s: uid %q, title %q; %s has that uid", name, board.UID, board.Title, uids[board.UID])
		}
		uids[board.UID] = name
		ids := make(map[int]bool)
		for _, p := range board.Panels {
			if ids[p.ID] || p.ID == 0 || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: panel %d %q", name, p.ID, p.Title)
			}
			ids[p.ID] = true
			if p.Type == "row" {
				continue
			}
			if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: panel %q has %d queries of %q", name, p.Title, len(p.Targets), p.Datasource.UID)
			}
			for _, q := range p.Targets {
				checkExpression(t, name+": "+p.Title, q.Expr, exported, q.LegendFormat)
			}
		}
		for _, v := range board.Templating.List {
			if v.Type != "query" {
				continue
			}
			metric, label, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ")"), ", ")
			if !slices.Contains(exported[metric], label) {
				t.Errorf("%s: variable of %s", name, v.Definition)
			}
		}
	}
	if len(files) != 3 {
		t.Errorf("%d dashboards", len(files))
	}
}

// TestCheckExpressionFindsMistakes holds that the check of the two tests above can fail.
func TestCheckExpressionFindsMistakes(t *testing.T) {
	exported := map[string][]string{"conductor_ready": {"instance"}}
	f := func(expr, text string) {
		t.Helper()
		probe := new(testing.T)
		if checkExpression(probe, "", expr, exported, text); !probe.Failed() {
			t.Errorf("%q with %q passes", expr, text)
		}
	}
	f("conductor_redy == 0", "")
	f(`conductor_ready{state="x"} == 0`, "")
	f("sum by (tenant_id) (conductor_ready)", "")
	f("conductor_ready == 0", "{{ $labels.tenant_id }}")
	f("conductor_ready == 0", "{{code}}")
	f("up == 0", "")
}
