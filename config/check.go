package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
)

// Here are the checks of single texts, which say what is wrong with a text and how to write it.

func checkNothing(string) error { return nil }

// checkFilled checks a text of at least one byte.
func checkFilled(s string) error {
	if s == "" {
		return errors.New("must not be empty")
	}
	return nil
}

// headerBytes are those of a token of RFC 9110.
const headerBytes = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// checkHeader checks the name of an HTTP header.
func checkHeader(s string) error {
	if s == "" || strings.Trim(s, headerBytes) != "" {
		return fmt.Errorf("invalid HTTP header name %q", s)
	}
	return nil
}

// roleWords are those of conductor/access, and two for lists.
var roleWords = wordKind("query", "register", "metrics", "peer", "admin", "none", Auto)

func checkRole(s string) error {
	_, err := roleWords.parse(s)
	return err
}

// checkExpanded returns an error that names the first variable in an address.
func checkExpanded(address string) error {
	if err := reach.CheckExpanded(address); err != nil {
		return fmt.Errorf("%q %w", redact.URL(address), err)
	}
	return nil
}

// checkHostName checks a name, or an address, as a Host header has it without its port.
func checkHostName(s string) error {
	name := s
	if inner, ok := strings.CutPrefix(s, "["); ok {
		name = strings.TrimSuffix(inner, "]")
	}
	if err := reach.CheckHost(name); err != nil {
		return fmt.Errorf("%q %w", s, err)
	}
	if strings.Contains(name, ":") && net.ParseIP(name) == nil {
		return fmt.Errorf("%q is more than a host name: any port is meant", s)
	}
	return nil
}

func checkURLOrNone(text string) error {
	if text == "" {
		return nil
	}
	return reach.CheckURL(text)
}

// checkURLHost checks the host of a URL that is connected to, and its port if it has one.
func checkURLHost(u *url.URL) error {
	if err := reach.CheckHost(u.Hostname()); err != nil || u.Port() == "" {
		return err
	}
	return reach.CheckPort(u.Port())
}

// checkStoreURL checks the URL of a store, or nothing. No error says more of the URL than its host, because it
// may have a password.
func checkStoreURL(s string) error {
	if s == "" {
		return nil
	}
	if !strings.HasPrefix(s, "redis://") && !strings.HasPrefix(s, "rediss://") {
		return errors.New("must begin with redis:// or rediss://")
	}
	_, host, _ := strings.Cut(s, "://")
	host, _, _ = strings.Cut(host, "/")
	host = host[strings.LastIndexByte(host, '@')+1:]
	if err := reach.CheckExpanded(host); err != nil {
		return fmt.Errorf("host %q %w", host, err)
	}
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("is no URL, perhaps because a variable was not replaced; " +
			"write redis://user:password@host:port/database, with %XX for special characters of the password")
	}
	if err := checkURLHost(u); u.Hostname() != "" && err != nil { // without a host it is this machine
		return fmt.Errorf("host %q %w", host, err)
	}
	return nil
}

// checkAddress checks host:port and returns the port.
func checkAddress(address string) (port int, err error) {
	if address == "" {
		return 0, errors.New("is required; it is host:port, such as \":13333\"")
	}
	if err := checkExpanded(address); err != nil {
		return 0, err
	}
	_, text, err := net.SplitHostPort(address)
	if _, number := strconv.ParseUint(address, 10, 16); err != nil && number == nil {
		return 0, fmt.Errorf("%q is a port alone: put a host before it, as in \"127.0.0.1:%s\"", address, address)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is no host:port: %s", address, strings.TrimPrefix(err.Error(), "address "+address+": "))
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return 0, fmt.Errorf("%q has no port from 0 to 65535", address)
	}
	return port, nil
}

// checkRemoteAddress checks a host:port that is connected to.
func checkRemoteAddress(s string) error {
	if _, err := checkAddress(s); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(s)
	if err := cmp.Or(reach.CheckHost(host), reach.CheckPort(port)); err != nil {
		return fmt.Errorf("%q %w", s, err)
	}
	return nil
}
