package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// variable is a placeholder as shells, Compose files and Kubernetes write it.
var variable = regexp.MustCompile(`\$\{[^}]*\}?|\$\([^)]*\)?|\$[A-Za-z_][A-Za-z0-9_]*`)

// CheckExpanded returns an error that names the first variable in an address, such as ${POD_IP},
// $(POD_IP) or $POD_IP: a shell or Kubernetes was expected to put a value there. The
// error goes on from the address in quotes.
func CheckExpanded(address string) error {
	if name := variable.FindString(address); name != "" {
		return fmt.Errorf("has the variable %s, which nothing has replaced: write its value", name)
	}
	return nil
}

// CheckHost returns an error if a host without brackets cannot be connected to: it is a wildcard,
// a variable, or no name at all. It looks nothing up. The error goes on from the address in quotes.
func CheckHost(host string) error {
	switch err := CheckExpanded(host); {
	case err != nil:
		return err
	case host == "":
		return errors.New("names no host: write the one to connect to; a variable in its place may have been empty")
	case IsWildcard(host):
		return fmt.Errorf("is a wildcard to bind to: write the host to connect to instead of %q", host)
	case strings.ContainsAny(host, " \t\r\n\"#$'()*,/;<>?@\\`{|}"):
		return fmt.Errorf("has no valid host: %q", host)
	}
	return nil
}

// IsWildcard reports whether a host without brackets means every address of a machine, so that one
// can bind to it but not connect.
func IsWildcard(host string) bool {
	if host == "*" {
		return true
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.WithZone("").Unmap().IsUnspecified()
	}
	return host != "" && strings.Trim(host, "0.") == "" // resolvers read 0 and 0.0 as 0.0.0.0
}

// CheckPort returns an error if a port cannot be connected to. The error goes on from the address
// in quotes.
func CheckPort(port string) error {
	switch n, err := strconv.ParseUint(port, 10, 16); {
	case err == nil && n == 0:
		return errors.New("has port 0, for which the system picks one that is free: write the port that it picked")
	case err != nil:
		return fmt.Errorf("has no valid port: %q (want 1..65535)", port)
	}
	return nil
}
