// Package reach says which endpoints a client may have the server connect to, or listen at: a
// server in a private network reaches more than its clients do.
//
// A rule is one of
//
//	default                    the addresses that Parse documents
//	tcp://10.0.0.0/8           a network, on any port; an IPv6 network stands in brackets
//	tcp://10.1.2.3:5557        one address and port
//	tcp://*:5000-6000          any address, ports from 5000 to 6000
//	ipc:///run/engines/        sockets below a directory, or one socket
//	bind:tcp://*:5557          sockets that publishers connect to
package reach

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// Rules allow what one of them allows. They do not change.
type Rules struct {
	tcp  []network
	ipc  []string // clean paths; a directory ends with a slash
	bind []ports
	// standard says that default is among them, local that it means the server's own machine too.
	standard, local bool
}

type ports struct{ first, last uint16 }

func (p ports) hasPort(port uint16) bool { return p.first <= port && port <= p.last }

type network struct {
	netip.Prefix
	ports
}

// Parse reads rules. The rule default allows TCP to all addresses but those that are the network's
// own: unspecified, multicast, link-local, and those at which clouds tell machines their secrets.
// local says that none but this machine reaches the server: then default allows loopback too. Sockets, of a path
// or bound, always need a rule of their own. The error names the rule.
func Parse(rules []string, local bool) (*Rules, error) {
	r := new(Rules)
	for _, text := range rules {
		if err := r.addRule(text); err != nil {
			return nil, err
		}
	}
	r.local = r.standard && local
	return r, nil
}

// CheckRule returns the fault of a rule, nil if it has none.
func CheckRule(text string) error { return new(Rules).addRule(text) }

func (r *Rules) addRule(text string) error {
	bad := func(why string) error { return fmt.Errorf("rule %q %s", text, why) }
	switch {
	case text == "default":
		r.standard = true
	case strings.HasPrefix(text, "ipc://"):
		name := strings.TrimPrefix(text, "ipc://")
		if !path.IsAbs(name) {
			return bad("names no absolute path")
		}
		clean := path.Clean(name)
		if strings.HasSuffix(name, "/") && clean != "/" {
			clean += "/"
		}
		r.ipc = append(r.ipc, clean)
	case strings.HasPrefix(text, "bind:tcp://*"):
		p, ok := parsePorts(strings.TrimPrefix(text, "bind:tcp://*"))
		if !ok {
			return bad("has no port or range of ports")
		}
		r.bind = append(r.bind, p)
	case strings.HasPrefix(text, "tcp://"):
		all, ok := parseNetwork(strings.TrimPrefix(text, "tcp://"))
		if !ok {
			return bad("is no network such as tcp://10.0.0.0/8 or tcp://[fd00::/8]:5000-6000")
		}
		r.tcp = append(r.tcp, all...)
	default:
		return bad("is none of default, tcp://…, ipc://…, bind:tcp://*…")
	}
	return nil
}

// parseNetwork reads a network, an address or * with ports.
func parseNetwork(text string) (all []network, ok bool) {
	host, rest := text, ""
	if inner, after, found := strings.Cut(text, "]"); found {
		if host, ok = strings.CutPrefix(inner, "["); !ok {
			return nil, false
		}
		rest = after
	} else if i := strings.LastIndexByte(text, ':'); i >= 0 {
		host, rest = text[:i], text[i:]
	}
	p, ok := parsePorts(rest)
	if !ok {
		return nil, false
	}
	if host == "*" {
		return []network{{netip.MustParsePrefix("0.0.0.0/0"), p}, {netip.MustParsePrefix("::/0"), p}}, true
	}
	prefix, err := netip.ParsePrefix(host)
	if addr, err2 := netip.ParseAddr(host); err2 == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return []network{{prefix.Masked(), p}}, err == nil
}

// parsePorts reads nothing, a port or a range, behind a colon.
func parsePorts(text string) (p ports, ok bool) {
	if text == "" {
		return ports{1, 65535}, true
	}
	text, ok = strings.CutPrefix(text, ":")
	if !ok {
		return p, false
	}
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return ports{uint16(a), uint16(b)}, err == nil && err2 == nil && 0 < a && a <= b
}

// AllowsTCP reports whether an address may be connected to.
func (r *Rules) AllowsTCP(at netip.AddrPort) bool {
	addr := at.Addr().Unmap().WithZone("")
	for _, n := range r.tcp {
		if n.hasPort(at.Port()) && n.Contains(addr) {
			return true
		}
	}
	return r.standard && r.isUsual(addr)
}

// AllowsName reports whether a name may be looked up for a port: its addresses decide.
func (r *Rules) AllowsName(port uint16) bool {
	for _, n := range r.tcp {
		if n.hasPort(port) {
			return true
		}
	}
	return r.standard
}

// AllowsPath reports whether a socket may be connected to.
func (r *Rules) AllowsPath(name string) bool {
	if !path.IsAbs(name) {
		return false // an abstract socket, or one in the server's directory
	}
	clean := path.Clean(name)
	for _, rule := range r.ipc {
		if clean == rule || strings.HasSuffix(rule, "/") && strings.HasPrefix(clean, rule) {
			return true
		}
	}
	return false
}

// AllowsBind reports whether a port may be listened at.
func (r *Rules) AllowsBind(port uint16) bool {
	for _, p := range r.bind {
		if p.hasPort(port) {
			return true
		}
	}
	return false
}

// metadata are addresses at which clouds tell a machine its secrets, outside of link-local ones.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}

// Networks whose addresses hold one of IPv4.
var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
	here   = netip.MustParsePrefix("0.0.0.0/8")
	all4   = netip.MustParseAddr("255.255.255.255")
)

// translated are networks whose addresses a router may turn into one of IPv4 that they do not show
// in a fixed place, or that nothing uses any more.
var translated = []netip.Prefix{
	netip.MustParsePrefix("64:ff9b:1::/48"),  // NAT64 of the network itself
	netip.MustParsePrefix("2001::/32"),       // Teredo
	netip.MustParsePrefix("::/96"),           // IPv4-compatible
	netip.MustParsePrefix("::ffff:0:0:0/96"), // IPv4-translated
}

// isUsual reports whether default allows an address.
func (r *Rules) isUsual(addr netip.Addr) bool {
	switch b := addr.As16(); {
	case nat64.Contains(addr):
		return r.isUsual(netip.AddrFrom4([4]byte(b[12:16])))
	case sixTo4.Contains(addr):
		return r.isUsual(netip.AddrFrom4([4]byte(b[2:6])))
	}
	for _, m := range metadata {
		if addr == m {
			return false
		}
	}
	if addr.IsLoopback() {
		return r.local
	}
	for _, n := range translated {
		if n.Contains(addr) {
			return false
		}
	}
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast() &&
		!here.Contains(addr) && addr != all4
}
