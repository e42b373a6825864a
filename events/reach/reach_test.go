package reach

import (
	"net/netip"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

func parse(t *testing.T, local bool, rules ...string) *Rules {
	t.Helper()
	r, err := Parse(rules, local)
	must.Succeed(t, err)
	return r
}

// TestDefault: a client cannot have the server reach what the network keeps for itself.
func TestDefault(t *testing.T) {
	r, local := parse(t, false, "default"), parse(t, true, "default")
	for _, at := range strings.Fields(`10.0.0.1:5557 192.168.1.9:1 8.8.8.8:80 [2001:db8::1]:5557 [fd12::1]:5557 [64:ff9b::808:808]:80`) {
		if addr := netip.MustParseAddrPort(at); !r.AllowsTCP(addr) || !local.AllowsTCP(addr) {
			t.Errorf("%s is refused", at)
		}
	}
	for _, at := range strings.Fields(`169.254.169.254:80 169.254.1.1:80 [fe80::1]:80 [fd00:ec2::254]:80 100.100.100.200:80 168.63.129.16:80
		0.0.0.0:80 0.1.2.3:80 [::]:80 224.0.0.1:80 255.255.255.255:80 [ff02::1]:80 [::ffff:169.254.169.254]:80
		[64:ff9b::a9fe:a9fe]:80 [2002:a9fe:a9fe::1]:80 [fe80::1%eth0]:80
		[64:ff9b:1::a9fe:a9fe]:80 [2001:0:a9fe:a9fe::1]:80 [::169.254.169.254]:80 [::ffff:0:169.254.169.254]:80`) {
		if addr := netip.MustParseAddrPort(at); r.AllowsTCP(addr) || local.AllowsTCP(addr) {
			t.Errorf("%s is allowed", at)
		}
	}
	for _, at := range strings.Fields(`127.0.0.1:5557 127.9.9.9:5557 [::1]:5557 [::ffff:127.0.0.1]:5557 [64:ff9b::7f00:1]:80 ` +
		`[2002:7f00:1::]:80`) {
		if addr := netip.MustParseAddrPort(at); r.AllowsTCP(addr) || !local.AllowsTCP(addr) {
			t.Errorf("%s: %t from elsewhere, %t from here", at, r.AllowsTCP(addr), local.AllowsTCP(addr))
		}
	}
	for _, name := range []string{"/run/x.sock", "@abstract", "x.sock"} {
		if r.AllowsPath(name) || local.AllowsPath(name) {
			t.Errorf("%s: %t from elsewhere, %t from here", name, r.AllowsPath(name), local.AllowsPath(name))
		}
	}
	if r.AllowsBind(5557) || local.AllowsBind(5557) || !r.AllowsName(80) {
		t.Error("bound sockets or names")
	}
}

func TestRules(t *testing.T) {
	r := parse(t, true, "tcp://10.0.0.0/8", "tcp://192.168.1.7:5557", "tcp://[fd00::/8]:5000-6000", "tcp://[::1]", "ipc:///run/engines/",
		"ipc:///tmp/../srv/one", "bind:tcp://*:7000-7001")
	f := func(want bool, all string) {
		t.Helper()
		for _, at := range strings.Fields(all) {
			if got := r.AllowsTCP(netip.MustParseAddrPort(at)); got != want {
				t.Errorf("%s: %t", at, got)
			}
		}
	}
	f(true, "10.1.2.3:1 [::ffff:10.1.2.3]:65535 192.168.1.7:5557 [fd00::1]:5000 [fdff::1]:6000 [::1]:9")
	f(false, "11.0.0.1:1 192.168.1.7:5558 192.168.1.8:5557 [fd00::1]:4999 [fc00::1]:5000 127.0.0.1:5557 8.8.8.8:80")
	for name, want := range map[string]bool{
		"/run/engines/a": true, "/run/engines/b/c": true, "/srv/one": true, "/run/engines/../secret": false, "/run/engines": false,
		"/run/enginesX": false,
		"/srv/one/more": false, "@run/engines/a": false, "run/engines/a": false,
	} {
		if got := r.AllowsPath(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !r.AllowsBind(7001) || r.AllowsBind(7002) || !r.AllowsName(80) {
		t.Error("bound sockets or names")
	}
	if r := parse(t, false, "tcp://10.0.0.0/8:5000-6000"); !r.AllowsName(5500) || r.AllowsName(80) {
		t.Error("names on ports")
	}
	if r := parse(t, true); r.AllowsName(1) || r.AllowsBind(1) || r.AllowsPath("/x") || r.AllowsTCP(netip.MustParseAddrPort("10.0.0.1:1")) {
		t.Error("no rule allows something")
	}
	if any := parse(t, false, "tcp://*:80"); !any.AllowsTCP(netip.MustParseAddrPort("169.254.169.254:80")) ||
		any.AllowsTCP(netip.MustParseAddrPort("[::1]:81")) {
		t.Error("any address on a port")
	}
}

func TestBadRules(t *testing.T) {
	for _, text := range []string{
		"", "Default", "10.0.0.0/8", "tcp://", "tcp://host:1", "tcp://10.0.0.0/33", "tcp://10.0.0.0/8:0", "tcp://10.0.0.0/8:2-1",
		"tcp://10.0.0.0/8:1-65536", "tcp://10.0.0.0/8:",
		"tcp://fd00::/8", "tcp://[fd00::/8", "tcp://fd00::/8]", "tcp://[fd00::/8]5", "tcp://[fe80::1%eth0]", "ipc://x", "ipc://@x",
		"bind:tcp://1.2.3.4:1", "bind:tcp://*:x", "udp://*:1",
	} {
		if err := CheckRule(text); err == nil || !strings.Contains(err.Error(), `rule "`+text+`"`) {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := Parse([]string{"default", text}, false); err == nil {
			t.Errorf("%q is a rule", text)
		}
	}
}

// FuzzRules reads arbitrary rules and holds them against arbitrary addresses. No rule but one with
// the address in it allows what the network keeps for itself, however the address is written.
func FuzzRules(f *testing.F) {
	for _, rule := range []string{"default", "tcp://10.0.0.0/8", "tcp://[fd00::/8]:5000-6000", "tcp://*:1-65535", "ipc:///run/",
		"bind:tcp://*:7000", "tcp://[", "tcp://]:1", "tcp://::1"} {
		f.Add(rule, "169.254.169.254", "/run/../x", uint16(80))
		f.Add(rule, "64:ff9b::7f00:1", "@x", uint16(1))
	}
	f.Fuzz(func(t *testing.T, rule, address, name string, port uint16) {
		CheckRule(rule) // whatever it is
		standard := parse(t, false, "default")
		addr, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		at := netip.AddrPortFrom(addr, port)
		if plain := addr.Unmap().WithZone(""); standard.AllowsTCP(at) &&
			(plain.IsLoopback() || plain.IsLinkLocalUnicast() || plain.IsMulticast() || plain.IsUnspecified()) {
			t.Errorf("default allows %s", at)
		}
		if standard.AllowsPath(name) || standard.AllowsBind(port) {
			t.Errorf("default allows %q or port %d", name, port)
		}
		r, err := Parse([]string{rule}, false)
		if err != nil || rule == "default" {
			return
		}
		if r.AllowsTCP(at) && !strings.HasPrefix(rule, "tcp://") {
			t.Errorf("%q allows %s", rule, at)
		}
		if mapped := netip.AddrPortFrom(netip.AddrFrom16(addr.As16()), port); r.AllowsTCP(mapped) != r.AllowsTCP(at) {
			t.Errorf("%q tells %s and %s apart", rule, at, mapped)
		}
		if r.AllowsPath(name) && !strings.HasPrefix(rule, "ipc://") || r.AllowsBind(port) && !strings.HasPrefix(rule, "bind:") {
			t.Errorf("%q allows %q or port %d", rule, name, port)
		}
	})
}
