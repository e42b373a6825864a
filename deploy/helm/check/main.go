// Command check reads rendered manifests from standard input and decodes each into the type of
// Kubernetes or of the Prometheus operator, without unknown fields. It prints the settings file of the
// server, and writes the rules for Prometheus, if there are any, to the file that its argument names.
// Without an argument it only checks types, as for the manifests in documents.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// typeOf returns an empty object of a kind, nil if this program does not know the kind.
func typeOf(kind string) any {
	switch kind {
	case "apps/v1 Deployment":
		return new(appsv1.Deployment)
	case "apps/v1 StatefulSet":
		return new(appsv1.StatefulSet)
	case "v1 Service":
		return new(corev1.Service)
	case "v1 Secret":
		return new(corev1.Secret)
	case "v1 Pod":
		return new(corev1.Pod)
	case "policy/v1 PodDisruptionBudget":
		return new(policyv1.PodDisruptionBudget)
	case "networking.k8s.io/v1 NetworkPolicy":
		return new(networkingv1.NetworkPolicy)
	case "v1 ConfigMap":
		return new(corev1.ConfigMap)
	case "v1 ServiceAccount":
		return new(corev1.ServiceAccount)
	case "networking.k8s.io/v1 Ingress":
		return new(networkingv1.Ingress)
	case "rbac.authorization.k8s.io/v1 Role":
		return new(rbacv1.Role)
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		return new(rbacv1.RoleBinding)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return new(monitoringv1.ServiceMonitor)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return new(monitoringv1.PrometheusRule)
	}
	return nil
}

var separator = regexp.MustCompile(`(?m)^---.*$`)

func run(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	var errs []error
	seen := make(map[string]int)
	var services []*corev1.Service
	var monitors []*monitoringv1.ServiceMonitor
	var tests []map[string]string // labels of pods of helm test
	for _, doc := range separator.Split(string(text), -1) {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			errs = append(errs, err)
			continue
		}
		if head.Kind == "" {
			continue
		}
		kind := head.APIVersion + " " + head.Kind
		object := typeOf(kind)
		if object == nil {
			errs = append(errs, fmt.Errorf("%s: this kind is not known", kind))
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		seen[head.Kind]++
		if s, ok := object.(*corev1.Secret); ok {
			io.Copy(out, bytes.NewBufferString(s.StringData["conductor.yaml"]))
		}
		if m, ok := object.(*corev1.ConfigMap); ok {
			for name, text := range m.Data {
				if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
					errs = append(errs, fmt.Errorf("%s is no JSON", name))
				}
			}
		}
		switch o := object.(type) {
		case *monitoringv1.PrometheusRule:
			rules, err := yaml.Marshal(o.Spec)
			errs = append(errs, err, os.WriteFile(os.Args[1], rules, 0o600))
		case *monitoringv1.ServiceMonitor:
			monitors = append(monitors, o)
		case *corev1.Service:
			services = append(services, o)
		case *corev1.Pod:
			tests = append(tests, o.Labels)
		case *appsv1.StatefulSet:
			errs = append(errs, hardened(o.Spec.Template.Spec)...)
			errs = append(errs, expanded(o.Spec.Template.Spec)...)
			errs = append(errs, bounded(o.Spec.Template.Spec)...)
		}
	}
	errs = append(errs, selected(services, monitors, tests)...)
	for _, kind := range []string{"StatefulSet", "Service", "Secret"} {
		if len(os.Args) > 1 && seen[kind] == 0 {
			errs = append(errs, fmt.Errorf("there is no %s", kind))
		}
	}
	return errors.Join(errs...)
}

// selected returns monitors that scrape a pod more than once, or not at all, and Services that send requests to the pod of
// helm test.
func selected(services []*corev1.Service, monitors []*monitoringv1.ServiceMonitor, tests []map[string]string) (errs []error) {
	matches := func(selector, labels map[string]string) bool {
		for key, value := range selector {
			if labels[key] != value {
				return false
			}
		}
		return len(selector) > 0
	}
	for _, m := range monitors {
		n := 0
		for _, s := range services {
			if matches(m.Spec.Selector.MatchLabels, s.Labels) {
				n++
			}
		}
		if n != 1 {
			errs = append(errs, fmt.Errorf("the ServiceMonitor %s selects %d Services, so it scrapes each pod as many times", m.Name, n))
		}
	}
	for _, s := range services {
		for _, labels := range tests {
			if matches(s.Spec.Selector, labels) {
				errs = append(errs, fmt.Errorf("the Service %s selects the pod of helm test", s.Name))
			}
		}
	}
	return errs
}

// hardened returns what the restricted profile of pods would refuse.
func hardened(p corev1.PodSpec) (errs []error) {
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	if p.SecurityContext == nil || !is(p.SecurityContext.RunAsNonRoot, true) || p.SecurityContext.SeccompProfile == nil {
		errs = append(errs, errors.New("the pod may run as root or without seccomp"))
	}
	for _, c := range p.Containers {
		s := c.SecurityContext
		if s == nil || !is(s.AllowPrivilegeEscalation, false) || !is(s.ReadOnlyRootFilesystem, true) || s.Capabilities == nil ||
			len(s.Capabilities.Drop) == 0 {
			errs = append(errs, fmt.Errorf("container %s has more rights than it needs", c.Name))
		}
		own := c.Name == "conductor" || c.Name == "valkey" // what values add needs no probes
		if own && (c.ReadinessProbe == nil || c.LivenessProbe == nil || c.StartupProbe == nil) || c.Resources.Limits.Memory().IsZero() {
			errs = append(errs, fmt.Errorf("container %s lacks a probe or a memory limit", c.Name))
		}
	}
	return errs
}

// bounded returns stores that the kernel may kill: they keep more than four fifths of their limit, or throw keys away.
func bounded(p corev1.PodSpec) (errs []error) {
	for _, c := range p.Containers {
		if len(c.Command) == 0 || c.Command[0] != "valkey-server" {
			continue
		}
		args := strings.Join(c.Args, " ")
		most := regexp.MustCompile(`--maxmemory ([0-9]+)(m|g)b`).FindStringSubmatch(args)
		if most == nil || !strings.Contains(args, "--maxmemory-policy noeviction") {
			errs = append(errs, fmt.Errorf("%s: no bound without eviction: %s", c.Name, args))
			continue
		}
		bytes := resource.MustParse(most[1] + strings.ToUpper(most[2]) + "i") // valkey's mb are MiB
		if limit := c.Resources.Limits.Memory().Value(); bytes.Value() > limit/5*4 {
			errs = append(errs, fmt.Errorf("%s: --maxmemory %s is too much for a limit of %d bytes", c.Name, most[0], limit))
		}
	}
	return errs
}

var reference = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// expanded returns references to variables that the pod does not define before their use, and an
// advertised URL that is the same for all pods. Kubernetes leaves unknown references as they are.
func expanded(p corev1.PodSpec) (errs []error) {
	for _, c := range p.Containers {
		known := make(map[string]bool)
		for _, e := range c.Env {
			uses := reference.FindAllStringSubmatch(e.Value, -1)
			for _, name := range uses {
				if !known[name[1]] {
					errs = append(errs, fmt.Errorf("%s: %s uses %s, which is not defined before it", c.Name, e.Name, name[1]))
				}
			}
			if e.Name == "CONDUCTOR_STORE_ADVERTISE" && len(uses) == 0 {
				errs = append(errs, fmt.Errorf("%s: all pods advertise %s", c.Name, e.Value))
			}
			known[e.Name] = true
		}
	}
	return errs
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
