package main

import (
	"cmp"
	"net"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/events/reach"
)

// logStart writes what the server is about to do: its version, the settings file, where it listens, how many
// sources it begins with, and the address of the page. It warns if anybody on the network may register engines.
func logStart(file string, cfg *config.Config, web *server.Servers, log zerolog.Logger) {
	var listens []string
	page := ""
	for i, l := range cfg.Listeners {
		listens = append(listens, web.Address(i)+" "+l.Dialect)
		if page == "" && l.Dialect != config.GRPC && cfg.UI.Enabled {
			page = pageURL(web.Address(i), cfg.TLS.Cert != "")
		}
	}
	line := log.Info().Str("version", version).Str("settings", cmp.Or(file, "no settings file")).Strs("listeners", listens).Int("sources",
		len(cfg.Sources))
	if page != "" {
		line = line.Str("page", page)
	}
	line.Msg("conductor starts")
	if strangersRegister(cfg) {
		log.Warn().Msg("anybody who reaches a listener may register engines, and so change answers: set auth.file, or auth.anonymous to " +
			"[query], or listen on 127.0.0.1")
	}
}

// pageURL returns the address of the page on a listener. One that listens everywhere is named localhost.
func pageURL(address string, secure bool) string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/ui"
}

// strangersRegister reports whether a client without credentials may register engines from another machine.
func strangersRegister(cfg *config.Config) bool {
	anonymous := access.Query | access.Register
	if cfg.Auth.File != "" {
		anonymous = 0
	}
	return !onLoopback(cfg.Listeners) && rolesOf(cfg.Auth.Anonymous, anonymous)&access.Register != 0
}

// sharedPorts returns the pairs of listeners that a server cannot have together: both have the same port, and one
// of them listens at every address.
func sharedPorts(all []config.Listener) (pairs [][2]int) {
	wild := func(host string) bool { return host == "" || reach.IsWildcard(host) }
	for i, a := range all {
		for j, b := range all[:i] {
			hostA, portA, _ := net.SplitHostPort(a.Address)
			hostB, portB, _ := net.SplitHostPort(b.Address)
			if portA == portB && portA != "0" && portA != "" && hostA != hostB && (wild(hostA) || wild(hostB)) {
				pairs = append(pairs, [2]int{i, j})
			}
		}
	}
	return pairs
}
