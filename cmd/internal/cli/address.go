package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"example.com/conductor/redact"
)

// defaultPort is where a server with default settings listens.
const defaultPort = "13333"

// BaseURL returns the base URL of a listener that a user names: a URL, host:port, or a host alone, which
// means the default port. An address without a scheme is https if secure is set, else http.
func BaseURL(text string, secure bool) (string, error) {
	text = strings.TrimSpace(text)
	given := redact.URL(text) // in errors
	if !strings.Contains(text, "://") {
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		host, rest := text, ""
		if i := strings.IndexAny(text, "/?#"); i >= 0 {
			host, rest = text[:i], text[i:]
		}
		full, err := withPort(host)
		if err != nil {
			return "", fmt.Errorf("%q: %w", given, err)
		}
		text = scheme + full + rest
	}
	u, err := url.Parse(text)
	if err != nil && given != text {
		return "", fmt.Errorf("%q is no URL", given)
	}
	if err != nil {
		if wrong := (*url.Error)(nil); errors.As(err, &wrong) {
			err = wrong.Err
		}
		return "", fmt.Errorf("%q is no URL: %w", given, err)
	}
	base := u.Scheme + "://" + u.Host
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q: commands ask over http or https, not over %s", given, u.Scheme)
	case u.Hostname() == "":
		return "", fmt.Errorf("%q has no host: name host:port", given)
	case u.User != nil:
		return "", fmt.Errorf("%q has a user: a token goes into a file, which --token-file names", given)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%q has a path: name the listener alone, %s, because each command adds the path that it asks", given, base)
	}
	if port := u.Port(); port != "" {
		if err := checkPort(port); err != nil {
			return "", fmt.Errorf("%q: %w", given, err)
		}
	}
	return base, nil
}

// withPort completes a host, with a port or without.
func withPort(text string) (string, error) {
	if text == "" {
		return "", errors.New("no host: name host:port")
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil && ip.Is6() {
		return net.JoinHostPort(bare, defaultPort), nil
	}
	if !strings.Contains(text, ":") {
		return net.JoinHostPort(text, defaultPort), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", errors.New("neither host:port nor a URL; an IPv6 address with a port needs brackets, as [::1]:13333")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), checkPort(port)
}

func checkPort(text string) error {
	if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
		if strings.Contains(text, "@") { // of user:password@host
			text = redact.Hidden
		}
		return fmt.Errorf("%q is no port: a port is a number from 1 to 65535", text)
	}
	return nil
}
