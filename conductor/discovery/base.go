package discovery

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
)

// served finds what stands behind the base of an engine's HTTP server in the URLs that people have of it: the /v1 of clients
// of OpenAI's API (OPENAI_BASE_URL), or a whole path that vLLM or SGLang answers. A path in front of that is a proxy's.
var served = regexp.MustCompile(`(?:/v1(?:/(?:(?:chat/)?completions|embeddings|messages|models|responses|score|rerank))?` +
	`|/kv_event_sources|/(?:get_)?server_info|/(?:get_)?model_info|/generate|/health|/metrics|/version|/docs)$`)

// baseOf returns what stands in front of the paths that an engine is asked for, for a URL that checkURL finds no fault with.
func baseOf(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	host, path, _ := strings.Cut(rest, "/")
	path = strings.TrimRight("/"+path, "/")
	return scheme + "://" + host + strings.TrimRight(served.ReplaceAllString(path, ""), "/")
}

// addressOf returns where requests of clients go to the engine at an address of the target: to the name that its URL has, unless
// that means several engines.
func addressOf(t *target, address netip.Addr) string {
	base := baseOf(t.URL)
	u, err := url.Parse(base)
	if err != nil || !t.many {
		return base
	}
	port := u.Port()
	if u.Host = address.String(); address.Is6() {
		u.Host = "[" + u.Host + "]"
	}
	if port != "" {
		u.Host += ":" + port
	}
	return u.String()
}

// checkURL returns the fault of the address of an engine's HTTP server, nil if it has none.
func checkURL(text string) error {
	if err := reach.CheckURL(text); err != nil {
		return err
	}
	if u, err := url.Parse(text); err != nil || u.User != nil {
		return fmt.Errorf("%q has a user: engines are given no password, and a token by discovery.token_file", redact.URL(text))
	}
	return nil
}
