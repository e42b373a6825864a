// Package deploy tests the files in this folder: the manifests for Kubernetes, and the image next to them. envoy.yaml runs in
// the tests of package check.
package deploy

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/integrations/envoy/extproc"
	"example.com/conductor/internal/must"
)

// schemas are of the kinds that only the Gateway API and its inference extension know. `make deploy-check` decodes the other ones
// into the types of Kubernetes.
var schemas = map[string]string{
	"inference.networking.k8s.io/v1 InferencePool": "testdata/inferencepool.yaml",
	"gateway.networking.k8s.io/v1 HTTPRoute":       "testdata/httproute.yaml",
}

// documents returns the documents of a YAML file.
func documents(t *testing.T, text []byte) (all []map[string]any) {
	t.Helper()
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var one map[string]any
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asJSON returns a value as encoding/json makes it, which is what schemas are written for.
func asJSON(t *testing.T, in, out any) {
	t.Helper()
	text, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// schemaOf returns the schema of a kind. Unlike the API server, which drops unknown fields unless it is asked to be strict, it
// refuses them.
func schemaOf(t *testing.T, kind string) *openapi3.Schema {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal(read(t, schemas[kind]), &tree); err != nil {
		t.Fatal(err)
	}
	forbidUnknown(tree)
	delete(tree.(map[string]any)["properties"].(map[string]any)["metadata"].(map[string]any), "additionalProperties")
	schema := new(openapi3.Schema)
	asJSON(t, tree, schema)
	return schema
}

// forbidUnknown lets no object of a schema have properties that the schema does not list.
func forbidUnknown(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, listed := node["properties"].(map[string]any); listed && node["type"] == "object" {
			node["additionalProperties"] = false
		}
		for _, below := range node {
			forbidUnknown(below)
		}
	case []any:
		for _, below := range node {
			forbidUnknown(below)
		}
	}
}

// check returns what is wrong with the manifests of kinds that have schemas, and the kinds that it found.
func check(t *testing.T, text []byte) (kinds []string, err error) {
	t.Helper()
	var wrong []error
	for _, one := range documents(t, text) {
		kind := fmt.Sprint(one["apiVersion"], " ", one["kind"])
		kinds = append(kinds, kind)
		if schemas[kind] == "" {
			continue
		}
		var value any
		asJSON(t, one, &value)
		wrong = append(wrong, schemaOf(t, kind).VisitJSON(value, openapi3.MultiErrors()))
	}
	return kinds, errors.Join(wrong...)
}

func TestKubernetes(t *testing.T) {
	text := read(t, "kubernetes.yaml")
	kinds, err := check(t, text)
	if err != nil {
		t.Error(err)
	}
	for kind := range schemas {
		if !slices.Contains(kinds, kind) {
			t.Errorf("there is no %s", kind)
		}
	}
	// The checks find what is wrong.
	f := func(old, new, want string) {
		t.Helper()
		if n := strings.Count(string(text), old); n != 1 {
			t.Fatalf("%q is there %d times", old, n)
		}
		if _, err := check(t, []byte(strings.Replace(string(text), old, new, 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", new, err, want)
		}
	}
	f("failureMode: FailOpen", "failuremode: FailOpen", `property "failuremode" is unsupported`)
	f("failureMode: FailOpen", "failureMode: Open", "failureMode")
	f("- number: 8000", `- number: "8000"`, "integer")
	f("- number: 8000", `- number: 80000`, "65535")
	f("matchLabels: {app: vllm}", "matchLabels: {}", "at least 1 properties")
	f("    name: conductor-picker\n    port:", "    port:", "name")
	f("timeouts: {request: 0s}", "timeout: {request: 0s}", `property "timeout" is unsupported`)
	f("timeouts: {request: 0s}", "timeouts: {request: 0}", "string")
	f("value: /v1/}", "value: [/v1/]}", "string")
	f("    - name: inference-gateway", "    - nmae: inference-gateway", `"nmae"`)
}

// TestPartsFit holds what no schema says: names, labels and ports of one object that another one refers to.
func TestPartsFit(t *testing.T) {
	of := map[string]map[string]any{}
	for _, one := range documents(t, read(t, "kubernetes.yaml")) {
		of[one["kind"].(string)] = one
	}
	at := func(v any, path ...any) any {
		for _, step := range path {
			switch step := step.(type) {
			case string:
				v = v.(map[string]any)[step]
			case int:
				v = v.([]any)[step]
			}
		}
		return v
	}
	same := func(what string, a, b any) {
		t.Helper()
		if fmt.Sprint(a) != fmt.Sprint(b) || a == nil {
			t.Errorf("%s: %v and %v", what, a, b)
		}
	}
	pod := at(of["Deployment"], "spec", "template")
	container := at(pod, "spec", "containers", 0)
	labels := at(pod, "metadata", "labels")
	same("labels of the Deployment", at(of["Deployment"], "spec", "selector", "matchLabels"), labels)
	same("labels of the Service", at(of["Service"], "spec", "selector"), labels)
	same("labels of the budget", at(of["PodDisruptionBudget"], "spec", "selector", "matchLabels"), labels)
	same("labels of the policy", at(of["NetworkPolicy"], "spec", "podSelector", "matchLabels"), labels)
	picker, pool := at(of["InferencePool"], "spec", "endpointPickerRef"), at(of["HTTPRoute"], "spec", "rules", 0, "backendRefs", 0)
	same("picker of the pool", at(picker, "name"), at(of["Service"], "metadata", "name"))
	same("port of the picker", at(picker, "port", "number"), at(of["Service"], "spec", "ports", 0, "port"))
	same("pool of the route", at(pool, "name"), at(of["InferencePool"], "metadata", "name"))
	for i, port := range []string{"grpc", "admin"} {
		same("name of a port", at(container, "ports", i, "name"), port)
		same("target of a port", at(of["Service"], "spec", "ports", i, "targetPort"), port)
		same("port", at(of["Service"], "spec", "ports", i, "port"), at(container, "ports", i, "containerPort"))
	}
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		same(probe, at(container, probe, "httpGet", "port"), "admin")
	}
}

// TestImage holds that the image has what the manifests expect of it, because there may be nobody here who can build images.
func TestImage(t *testing.T) {
	text := string(read(t, "../Dockerfile"))
	_, last, _ := strings.Cut(text, "\nFROM scratch\n")
	said := func(word string) string {
		m := regexp.MustCompile(`(?m)^`+word+` (.*)$`).FindAllStringSubmatch(last, -1)
		if len(m) != 1 {
			t.Fatalf("the Dockerfile says %s %d times", word, len(m))
		}
		return m[0][1]
	}
	manifests := string(read(t, "kubernetes.yaml"))
	for _, port := range strings.Fields(said("EXPOSE")) {
		if !strings.Contains(manifests, "containerPort: "+port) {
			t.Errorf("the manifests do not know port %s of the image", port)
		}
	}
	user, _, _ := strings.Cut(said("USER"), ":")
	if !strings.Contains(manifests, "runAsUser: "+user+"\n") {
		t.Errorf("the manifests do not run as the user %s of the image", user)
	}
	const program = "/usr/bin/conductor-picker"
	if said("ENTRYPOINT") != `["`+program+`"]` || !strings.Contains(last, "COPY --from=build /out/conductor-picker "+program+"\n") {
		t.Error("the image does not start the program that it has")
	}
	if !strings.Contains(text, "CGO_ENABLED=0 go build ") {
		t.Error("the program of the image needs libraries that the image does not have")
	}
	// What is copied is there.
	for _, name := range []string{"go.mod", "go.sum", "integrations/envoy/go.mod", "integrations/envoy/go.sum"} {
		if !regexp.MustCompile(`(?m)^COPY .*\b` + regexp.QuoteMeta(name) + `\b`).MatchString(text) {
			t.Errorf("the Dockerfile does not copy %s", name)
		}
		if _, err := os.Stat("../../../" + name); err != nil {
			t.Error(err)
		}
	}
}

// TestProgramIsStatic holds that the program, built as for the image, needs nothing that an empty image does not have. `make
// envoy-check` names it.
func TestProgramIsStatic(t *testing.T) {
	name := os.Getenv("PICKER_BINARY")
	if name == "" {
		must.Skip(t, "PICKER_BINARY is not set")
	}
	program, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %s, so it is linked at its start", p.Type)
		}
	}
}

// TestForeignHeaders holds that Envoy removes what only the picker may set, because the picker may be down. Its own debug headers are
// read by nobody else.
func TestForeignHeaders(t *testing.T) {
	removed := regexp.MustCompile(`- remove: (\S+)`).FindAllStringSubmatch(string(read(t, "envoy.yaml")), -1)
	for _, name := range extproc.OwnHeaders {
		if name != extproc.WhyHeader && name != extproc.DebugHeader &&
			!slices.ContainsFunc(removed, func(m []string) bool { return m[1] == name }) {
			t.Errorf("envoy.yaml lets clients set %s", name)
		}
	}
}

// TestAlerts has promtool read the alerts, where there is one.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		must.Skip(t, "no promtool to check the alerts with")
	}
	if output, err := exec.Command(promtool, "check", "rules", "--lint=all", "alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
