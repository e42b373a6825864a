package request

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Failure says in one sentence why a server gave no answer, and what the user can do.
type Failure struct {
	text string
	err  error // what the transport returned
}

func (f *Failure) Error() string { return f.text }

// Unwrap returns the transport's error, for callers that branch on it.
func (f *Failure) Unwrap() error { return f.err }

// Explain turns the error of a request to the listener at base, a URL, into a Failure. It returns
// nil for nil, and context.Canceled if the user interrupted the request.
func Explain(base string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	at, host := base, base
	if u, parseErr := url.Parse(base); parseErr == nil && u.Host != "" {
		at, host = u.Host, u.Hostname()
	}
	return &Failure{text: cause(at, host, err), err: err}
}

// cause words an error. at is the host with the port.
func cause(at, host string, err error) string {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		dns       *net.DNSError
		op        *net.OpError
		timeout   net.Error
	)
	text := innermost(err).Error()
	isOp := errors.As(err, &op)
	switch {
	case isOp && op.Op == "proxyconnect":
		return fmt.Sprintf("the proxy that HTTP_PROXY or HTTPS_PROXY names does not answer: %s", text)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Sprintf("%s does not speak TLS: name it as http://%s", at, at)
	case errors.As(err, &authority):
		return fmt.Sprintf("%s shows a certificate of an authority that this machine does not trust: name the file of that authority "+
			"with --cacert", at)
	case errors.As(err, &name):
		return fmt.Sprintf("the certificate of %s is not for %q but for %s: name the server as its certificate does", at, name.Host,
			certified(name.Certificate))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of %s is valid from %s to %s only", at, invalid.Cert.NotBefore.UTC().Format(time.RFC3339),
			invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case isOp && op.Op == "remote error" && strings.Contains(text, "certificate"):
		return fmt.Sprintf("%s wants the certificate of a client (%s): name one that it accepts with --cert and --key", at, text)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("there is no host called %q: check the address", dns.Name)
	case errors.As(err, &dns):
		return fmt.Sprintf("the address of the host %q cannot be looked up: %s", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED) && isLoopback(host):
		return fmt.Sprintf("no server listens at %s: start one with conductor serve, or name it with --server", at)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no server listens at %s: check the address, and that the server runs", at)
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return fmt.Sprintf("there is no way to %s from this machine: check the address and the network", at)
	case errors.As(err, &timeout) && timeout.Timeout() && isOp && op.Op == "dial":
		return fmt.Sprintf("nothing answers at %s: check the address, and whether a firewall drops connections to it", at)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("%s has taken the request, but does not answer in time", at)
	case closedEarly(err):
		return fmt.Sprintf("%s closed the connection without an answer: check that a Conductor listens there, and whether it wants TLS", at)
	case spokeOtherwise(err):
		return fmt.Sprintf("what listens at %s does not speak HTTP: name a listener of a Conductor, and not one for gRPC or the port of "+
			"an engine", at)
	}
	return fmt.Sprintf("no answer from %s: %s", at, text)
}

// closedEarly reports whether the server closed the connection instead of answering. net/http has
// no exported error for a connection that closes before the request is on its way.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection")
}

// spokeOtherwise reports whether the server sent something other than HTTP. A ZMQ socket greets
// each client: if its greeting comes before the request is on its way, net/http says only
// that its loop of reads found bytes there (readLoopPeekFailLocked).
func spokeOtherwise(err error) bool {
	for _, sign := range []string{"malformed HTTP", "http2: ", "readLoopPeekFailLocked"} {
		if strings.Contains(err.Error(), sign) {
			return true
		}
	}
	return false
}

// innermost returns the error at the end of a chain.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// certified lists the names that a certificate is for.
func certified(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no host at all"
	}
	return strings.Join(names, ", ")
}

// IsLoopback reports whether a URL names this machine.
func IsLoopback(base string) bool {
	u, err := url.Parse(base)
	return err == nil && isLoopback(u.Hostname())
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}
