package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

func TestReadVLLMSources(t *testing.T) {
	one := []Rank{{0, "tcp://10.0.0.1:41233", "tcp://10.0.0.1:41234", ""}}
	f := func(body string, want []Rank, why string) {
		t.Helper()
		got, faulty, err := vllmRanks([]byte(body), "h")
		if len(faulty) > 0 {
			err = faulty[0].err
		}
		if why == "" && (err != nil || !reflect.DeepEqual(got, want)) || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s\n got %+v %v\nwant %+v %q", body, got, err, want, why)
		}
	}
	f(`{"0":{"publisher":"zmq","endpoint":"tcp://10.0.0.1:41233","replay_endpoint":"tcp://10.0.0.1:41234","topic":"kv-events","hwm":1}}`,
		one, "")
	f(`{"sources":[{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:41233","replay_endpoint":"tcp://10.0.0.1:41234","topic":""}]}`,
		one, "")
	f(`[{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:41233","replay_endpoint":"tcp://10.0.0.1:41234","topic":""}]`, one, "")
	f(`{"1":{"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":null},"0":{"endpoint":"tcp://[::]:5557",`+
		`"snapshot_endpoint":"tcp://0.0.0.0:7557"}}`,
		[]Rank{{0, "tcp://h:5557", "", "tcp://h:7557"}, {1, "tcp://h:5558", "", ""}}, "")
	f(`[{"endpoint":"tcp://0:1"}]`, []Rank{{0, "tcp://h:1", "", ""}}, "")
	f(`[{"endpoint":"tcp://127.0.0.1:5557"}]`, nil,
		`rank 0 publishes at "tcp://127.0.0.1:5557", which only programs on the engine's machine h reach`)
	f(`[{"endpoint":"tcp://*:1"},{"endpoint":"tcp://*:2","replay_endpoint":"tcp://localhost:3"}]`, nil,
		`rank 1 publishes at "tcp://localhost:3"`)
	f(`{}`, nil, "off")
	f(`[]`, nil, "off")
	f(`{"sources":[]}`, nil, "off")
	f(`{"0":{"publisher":"null","endpoint":""}}`, nil, "publisher")
	f(`{"0":{"publisher":"zmq","endpoint":""}}`, nil, "no endpoint")
	f(`{"x":{"endpoint":"tcp://h:1"}}`, nil, "rank")
	f(`{"-1":{"endpoint":"tcp://h:1"}}`, nil, "below zero")
	f(`[{"data_parallel_rank":0,"endpoint":"tcp://h:1"},{"data_parallel_rank":0,"endpoint":"tcp://h:2"}]`, nil, "twice")
	f(`[{"data_parallel_rank":0,"endpoint":"tcp://h:1"},{"data_parallel_rank":0,"endpoint":"tcp://h:1"}]`,
		[]Rank{{0, "tcp://h:1", "", ""}}, "")
	f(`"x"`, nil, "shape")
	f(`<html>`, nil, "shape")
}

// A rank that cannot be followed as it is named costs no other one, in whichever shape it comes.
func TestBadRankCostsItself(t *testing.T) {
	f := func(why string, got []Rank, faulty []faultyRank, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, []Rank{{0, "tcp://h:1", "", ""}}) {
			t.Errorf("%s: %+v, %v", why, got, err)
		}
		if len(faulty) != 1 || !strings.Contains(faulty[0].err.Error(), why) {
			t.Errorf("%q is not in %v", why, faulty)
		}
	}
	for _, c := range []struct{ name, endpoint, why string }{
		{`"-1"`, `"tcp://h:2"`, "the rank -1, which is below zero"}, {`"x"`, `"tcp://h:2"`, `the rank "x"`},
		{`"1.5"`, `"tcp://h:2"`, `the rank "1.5"`}, {`""`, `"tcp://h:2"`, `the rank ""`},
		{`"99999999999999999999"`, `"tcp://h:2"`, `the rank "99999999999999999999"`}, {`"1"`, `7`, `rank 1`},
	} {
		got, faulty, err := vllmRanks([]byte(`{"0":{"endpoint":"tcp://h:1"},`+c.name+`:{"endpoint":`+c.endpoint+`}}`), "h")
		f(c.why, got, faulty, err)
	}
	for _, c := range []struct{ rank, why string }{
		{`-1`, "the rank -1, which is below zero"}, {`"x"`, `the rank "\"x\""`}, {`1.5`, `the rank "1.5"`}, {`[]`, `the rank "[]"`},
		{`1e400`, `the rank "1e400"`},
	} {
		list := `[{"data_parallel_rank":0,"endpoint":"tcp://h:1"},{"data_parallel_rank":` + c.rank + `,"endpoint":"tcp://h:2"}]`
		for _, body := range []string{list, `{"sources":` + list + `}`} {
			got, faulty, err := vllmRanks([]byte(body), "h")
			f(c.why, got, faulty, err)
		}
		e, err := sglangEngine([]byte(`{"kv_events":{"publishers":[{"dp_rank":0,"endpoint":"tcp://h:1"},{"dp_rank":`+c.rank+
			`,"endpoint":"tcp://h:2"}]}}`), "h")
		f(c.why, e.Ranks, e.Faulty, err)
	}
}

func TestReadSGLangInfo(t *testing.T) {
	f := func(body string, want Engine, why string) {
		t.Helper()
		want.Type = "SGLang"
		got, err := sglangEngine([]byte(body), "fd00::1")
		if len(got.Faulty) > 0 {
			err = got.Faulty[0].err
		}
		if why == "" && (err != nil || !reflect.DeepEqual(got, want)) || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s\n got %+v %v\nwant %+v %q", body, got, err, want, why)
		}
	}
	f(`{"served_model_name":"m","model_path":"/m","page_size":1,"kv_events":{"publisher":"zmq","endpoint_host":"*",`+
		`"endpoint_port_base":5557,"topic":"","block_size":64,"dp_size":2}}`,
		Engine{Model: "m", BlockSize: 64, Ranks: []Rank{{0, "tcp://[fd00::1]:5557", "", ""}, {1, "tcp://[fd00::1]:5558", "", ""}}}, "")
	f(`{"model_path":"/m","kv_events":{"endpoint_host":"10.0.0.2","endpoint_port_base":7000,"block_size":1}}`,
		Engine{Model: "/m", BlockSize: 1, Ranks: []Rank{{0, "tcp://10.0.0.2:7000", "", ""}}}, "")
	f(`{"model_path":"/m","kv_events":{"block_size":1,"publishers":[{"dp_rank":1,"endpoint":"tcp://b:1"},{"dp_rank":0,`+
		`"endpoint":"tcp://*:1"}]}}`,
		Engine{Model: "/m", BlockSize: 1, Ranks: []Rank{{0, "tcp://[fd00::1]:1", "", ""}, {1, "tcp://b:1", "", ""}}}, "")
	f(`{"model_path":"/m","kv_events":{"endpoint_host":"[::1]","endpoint_port_base":7000,"block_size":1}}`, Engine{},
		"only programs on the engine's machine fd00::1 reach")
	f(`{"model_path":"/m","kv_events":null}`, Engine{}, "off")
	f(`{"kv_events":{"endpoint_port_base":0}}`, Engine{}, "port 0")
	f(`{"kv_events":{"endpoint_port_base":1,"dp_size":100000}}`, Engine{}, "ranks")
	f(`{"kv_events":{"endpoint_port_base":1,"dp_size":-1}}`, Engine{}, "ranks")
	f(`[]`, Engine{}, "shape")
}

func TestReadNames(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		all, err := namesOf([]byte(body), "")
		got := strings.Join(append([]string{all.model}, all.aliases...), " ")
		if len(all.adapters) > 0 {
			got += " with " + strings.Join(all.adapters, " ")
		}
		if err != nil && want != "" || got != want {
			t.Errorf("%.200s: %q %v, want %q", body, got, err, want)
		}
	}
	f(`{"data":[{"id":"a","root":"/m","parent":null},{"id":"b","root":"/m","parent":null},{"id":"sql","root":"/adapters/sql",`+
		`"parent":"a"},{"id":"c","root":"/m"},{"id":"b","root":"/m"}]}`, "a b c with sql")
	f(`{"data":[{"id":"a","root":"/m"},{"id":"b","root":"/m"},{"id":"x","parent":"b"},{"id":"y","parent":"other"},{"id":"x","parent":"a"},`+
		`{"id":"a","parent":"a"},{"id":"","parent":"a"}]}`, "a b with x")
	f(`{"data":[{"id":"a","root":"/m"},{"id":"b","root":"/n"},{"id":"sql","root":"/m","parent":"a"},{"id":"","root":"/m"}]}`, "a with sql")
	f(`{"data":[{"id":"a"},{"id":"b"}]}`, "a") // a list without roots may have other models
	f(`{"data":[{"id":"a","root":"/m"},{"id":"`+strings.Repeat("x", 257)+`","root":"/m"}]}`, "a")
	many := `{"data":[{"id":"a","root":"/m"}`
	for i := range 100 {
		many += `,{"id":"` + strings.Repeat("x", i+1) + `","root":"/m"}`
	}
	if all, err := namesOf([]byte(`{"data":[{"id":"n"},{"id":"a","root":"/m"},{"id":"b","root":"/m"}]}`), "b"); err != nil ||
		all.model != "b" || fmt.Sprint(all.aliases) != "[a]" {
		t.Errorf("the model %q of before has the aliases %v: %v", all.model, all.aliases, err)
	}
	if all, _ := namesOf([]byte(many+"]}"), ""); len(all.aliases) != maxServed {
		t.Errorf("%d aliases are taken", len(all.aliases))
	}
	f(`{"data":[]}`, "")
	f(`{"data":[{"id":7}]}`, "")
}

// TestIsAt holds which endpoints are ports of the machine that was asked. This machine has many addresses.
func TestIsAt(t *testing.T) {
	f := func(asked, endpoint string, want bool) {
		t.Helper()
		address, _ := netip.ParseAddr(asked) // "" for an engine without a URL
		if isAt(endpoint, address) != want {
			t.Errorf("asked at %s, %s is a port of that machine: %t, want %t", asked, endpoint, !want, want)
		}
	}
	f("10.9.9.9", "tcp://10.9.9.9:1", true)
	f("10.9.9.9", "tcp://[::ffff:10.9.9.9]:1", true)
	f("10.9.9.9", "tcp://10.9.9.8:1", false)
	for _, endpoint := range []string{"tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"} {
		f("10.9.9.9", endpoint, false)
		f("", endpoint, false)
	}
	ours := []string{"127.0.0.1", "127.0.1.1", "127.0.0.2", "::1"} // Debian gives the machine's name 127.0.1.1
	all, err := net.InterfaceAddrs()
	must.Succeed(t, err)
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		must.Succeed(t, err)
		if ours = append(ours, prefix.Addr().String()); !prefix.Addr().IsLoopback() {
			f("10.9.9.9", "tcp://"+net.JoinHostPort(prefix.Addr().String(), "1"), false)
		}
	}
	for _, asked := range ours {
		for _, told := range append(ours, "localhost") {
			f(asked, "tcp://"+net.JoinHostPort(told, "1"), true)
		}
		f(asked, "tcp://10.9.9.9:1", false)
		f(asked, "tcp://engine:1", false)
		f(asked, "ipc:///run/engine.sock", false)
		f(asked, "bind:tcp://127.0.0.1:1", false)
	}
}

func TestCheckURL(t *testing.T) {
	for text, ok := range map[string]bool{
		"http://engine:8000": true, "https://engine/base/": true, "http://[::1]:8000": true,
		"ftp://engine": false, "engine:8000": false, "http://": false, "http://u:p@engine": false, "http://engine?x=1": false,
		"http://engine:x":     false,
		"http://0.0.0.0:8000": false, "http://[::]:8000": false, "http://${POD_IP}:8000": false, "http://$(POD_IP):8000": false,
		"http://engine:0": false,
	} {
		if err := checkURL(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
