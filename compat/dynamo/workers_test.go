package dynamo

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestCheckEndpoint holds every row of the grammar, in Dynamo's words; want
// leaves out what all of them begin with.
func TestCheckEndpoint(t *testing.T) {
	f := func(endpoint, want string) {
		t.Helper()
		if want != "" {
			want = "invalid ZMQ endpoint `" + endpoint + "`: " + want
		}
		if got := said(checkEndpoint(endpoint)); got != want {
			t.Errorf("%q: %q, want %q", endpoint, got, want)
		}
		if want != "" {
			want = "invalid replay endpoint `" + endpoint + "`: " + want
		}
		if got := said(checkReplayEndpoint(endpoint)); got != want {
			t.Errorf("replay %q: %q, want %q", endpoint, got, want)
		}
	}
	f("tcp://host:5557", "")
	f("tcp://*:5558", "")
	f("tcp://127.0.0.1:0", "")
	f("tcp://[::1]:5557", "")
	f("tcp://[]:5", "")
	f("tcp://h:+5", "")
	f("tcp://h:65535", "")
	f("ipc:///tmp/engine.sock", "")
	f("ipc://*", "")
	f("inproc://listener", "")

	f("", "missing scheme")
	f("not-an-endpoint", "missing scheme")
	f("h:1", "missing scheme")
	f("tcp:/h:1", "missing scheme")
	f("tcp://", "missing address")
	f("ipc://", "missing address")
	f("udp://", "missing address")
	f("tcp://host", "missing TCP port")
	f("tcp://:5558", "missing TCP host")
	f("tcp://::1:5", "missing TCP port")
	f("tcp://[::1:5", "missing closing `]`")
	f("tcp://[::1]", "missing closing `]`")
	f("tcp://[::1]x", "missing closing `]`")
	f("tcp://[:5", "missing closing `]`")
	f("tcp://h:", "invalid TCP port: cannot parse integer from empty string")
	f("tcp://h:x", "invalid TCP port: invalid digit found in string")
	f("tcp://h:+", "invalid TCP port: invalid digit found in string")
	f("tcp://h:-1", "invalid TCP port: invalid digit found in string")
	f("tcp://h:++1", "invalid TCP port: invalid digit found in string")
	f("tcp://h:1_0", "invalid TCP port: invalid digit found in string")
	f("tcp://h:65536", "invalid TCP port: number too large to fit in target type")
	f("tcp://h:99999x", "invalid TCP port: number too large to fit in target type")
	f("udp://host:5558", "unsupported scheme `udp`")
	f("TCP://host:5558", "unsupported scheme `TCP`")
	f("://host:5558", "unsupported scheme ``")
}

func TestParseWorkers(t *testing.T) {
	f := func(in, wantErr string, want ...Worker) {
		t.Helper()
		got, err := ParseWorkers(in)
		if said(err) != wantErr || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %q\nwant %v, %q", in, got, said(err), want, wantErr)
		}
	}
	f("", "")
	f(" , ,", "")
	f("1=tcp://host:5557,2:1=tcp://host:5558", "", Worker{1, 0, "tcp://host:5557"}, Worker{2, 1, "tcp://host:5558"})
	f("7=tcp://a:1,7:1=tcp://a:2", "", Worker{7, 0, "tcp://a:1"}, Worker{7, 1, "tcp://a:2"})
	f(" 1 = tcp://[::1]:5557 , ", "", Worker{1, 0, "tcp://[::1]:5557"})
	f("+1:+2=ipc:///a=b", "", Worker{1, 2, "ipc:///a=b"})
	f("18446744073709551615:4294967295=inproc://x", "", Worker{1<<64 - 1, 1<<32 - 1, "inproc://x"})
	f("007=tcp://*:0", "", Worker{7, 0, "tcp://*:0"})

	f("1", "invalid worker entry `1`; expected worker_id[:dp_rank]=endpoint")
	f("1=tcp://h:1, 2 ", "invalid worker entry ` 2 `; expected worker_id[:dp_rank]=endpoint")
	f("x=tcp://h:1", "invalid worker id in `x=tcp://h:1`: invalid digit found in string")
	f("-1=tcp://h:1", "invalid worker id in `-1=tcp://h:1`: invalid digit found in string")
	f("=tcp://h:1", "invalid worker id in `=tcp://h:1`: cannot parse integer from empty string")
	f("18446744073709551616=tcp://h:1", "invalid worker id in `18446744073709551616=tcp://h:1`: number too large to fit in target type")
	f("1:z=tcp://h:1", "invalid dp_rank in `1:z=tcp://h:1`: invalid digit found in string")
	f("1:=tcp://h:1", "invalid dp_rank in `1:=tcp://h:1`: cannot parse integer from empty string")
	f("1:0:0=tcp://h:1", "invalid dp_rank in `1:0:0=tcp://h:1`: invalid digit found in string")
	f("1 :0=tcp://h:1", "invalid worker id in `1 :0=tcp://h:1`: invalid digit found in string")
	f("1:4294967296=tcp://h:1", "invalid dp_rank in `1:4294967296=tcp://h:1`: number too large to fit in target type")
	f("1=h:1", "invalid ZMQ endpoint `h:1`: missing scheme")
	f("1=", "invalid ZMQ endpoint ``: missing scheme")
	f("1= udp://h:1", "invalid ZMQ endpoint `udp://h:1`: unsupported scheme `udp`")
	f("1=tcp://h:1,1=tcp://h:2", "instance 1 dp_rank 0 already registered")
	f("1:3=tcp://h:1,01:3=tcp://h:1", "instance 1 dp_rank 3 already registered")
	f("1=tcp://h:1,1=tcp://h:2,3", "invalid worker entry `3`; expected worker_id[:dp_rank]=endpoint")
}

// FuzzParseWorkers holds that no text stops the parser, and that what it accepts
// reads the same when written out.
func FuzzParseWorkers(f *testing.F) {
	for _, seed := range []string{"", "1=tcp://h:1", "1:2=ipc://x,3=inproc://y", "1=tcp://[::1:5", "=", ":=://", "1=tcp://[",
		"+1=tcp://*:0,,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		workers, err := ParseWorkers(in)
		if err != nil {
			if workers != nil {
				t.Fatalf("%v beside %v", workers, err)
			}
			return
		}
		var again []string
		for _, w := range workers {
			if err := checkEndpoint(w.Endpoint); err != nil {
				t.Fatalf("accepted, and %v", err)
			}
			again = append(again, strconv.FormatUint(w.Instance, 10)+":"+strconv.FormatUint(uint64(w.Rank), 10)+"="+w.Endpoint)
		}
		back, err := ParseWorkers(strings.Join(again, ","))
		if err != nil || !slices.Equal(back, workers) {
			t.Fatalf("%v read back as %v, %v", workers, back, err)
		}
	})
}
