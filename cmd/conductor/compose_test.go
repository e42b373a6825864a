package main

import (
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/internal/must"
)

// composed is a compose file, as far as the command lines of the image go.
type composed struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
		Limit       string `yaml:"mem_limit"`
		Build       struct{ Target string }
	}
}

// TestComposeFiles reads the settings of each server in the compose files as serve does. A server
// with a store advertises a port that it listens on. Its shelf fits into the store twice: a snapshot is written
// before the one that it replaces goes.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	commandOf, advertised := make(map[string][]string), make(map[string]string)
	environmentOf := make(map[string]map[string]string)
	mebibytes := func(service, text, setting string) int {
		t.Helper()
		m := regexp.MustCompile(setting + `([0-9]+)(m|mb|MiB)\b`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s has no MiB of %q: %s", service, setting, text)
			return 0
		}
		n, err := strconv.Atoi(m[1])
		must.Succeed(t, err)
		return n
	}
	room := 0                                                              // MiB of the store
	for _, name := range []string{"compose.yaml", "compose.shards.yaml"} { // the second one changes the first one
		text, err := os.ReadFile("../../deploy/" + name)
		must.Succeed(t, err)
		var file composed
		must.Succeed(t, yaml.Unmarshal(text, &file))
		if s, there := file.Services["valkey"]; there {
			args := strings.Join(s.Command, " ")
			room = mebibytes("valkey", args, "--maxmemory ")
			if limit := mebibytes("valkey", s.Limit, ""); room > limit/5*4 || !strings.Contains(args, "--maxmemory-policy noeviction") {
				t.Errorf("the store has %d MiB of %d, by %s", room, limit, args)
			}
		}
		for service, s := range file.Services {
			if s.Command == nil {
				s.Command = commandOf[service]
			}
			if commandOf[service] = s.Command; len(s.Command) > 0 && s.Command[0] == "simulate" && s.Build.Target != "lab" {
				t.Errorf("%s: %s is built without conductor-lab, which has simulate", name, service)
			}
			if len(s.Command) == 0 || s.Command[0] != "serve" {
				continue
			}
			if len(s.Command) > 1 {
				t.Errorf("%s: %s: the health check of the image does not see %q: use variables", name, service, s.Command[1:])
			}
			environment := maps.Clone(environmentOf[service])
			if environment == nil {
				environment = make(map[string]string)
			}
			maps.Copy(environment, s.Environment)
			environmentOf[service], s.Environment = environment, environment
			cmd := command(append([]string{"config", "show"}, s.Command[1:]...)...)
			for key, value := range s.Environment {
				cmd.Env = append(cmd.Env, key+"="+value)
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s: %v\n%s", name, service, err, out)
			}
			if shelf := mebibytes(service, string(out), "shelf_bytes: "); 2*shelf > room {
				t.Errorf("%s: %s: shelves of %d MiB twice are too much for %d MiB", name, service, shelf, room)
			}
			url := s.Environment["CONDUCTOR_STORE_ADVERTISE"]
			if url == "" {
				continue
			}
			port := url[strings.LastIndexByte(url, ':'):]
			if by, taken := advertised[url]; taken || !strings.Contains(s.Environment["CONDUCTOR_LISTENERS"], port+"=conductor") {
				t.Errorf("%s: %s advertises %s, which is not its own listener but that of %q", name, service, url, by)
			}
			advertised[url] = service
			if !strings.Contains(string(out), "mode: shards") {
				t.Errorf("%s: %s shares no shards:\n%s", name, service, out)
			}
		}
	}
	if len(advertised) != 3 {
		t.Errorf("the compose files have other servers that share shards than three: %v", advertised)
	}
}
