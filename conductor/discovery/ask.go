package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
)

const (
	maxBody    = 4 << 20 // SGLang's server_info has all its settings
	askTimeout = 5 * time.Second
)

// checkURL returns the fault of the address of an engine's HTTP server, nil if it has none.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch unset := reach.CheckExpanded(text); {
	case unset != nil:
		return fmt.Errorf("%q %w", redact.URL(text), unset)
	case err != nil:
		return fmt.Errorf("%q is no URL", redact.URL(text))
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q has the scheme %q; write http://host:port or https://host:port", redact.URL(text), u.Scheme)
	case reach.CheckHost(u.Hostname()) != nil:
		return fmt.Errorf("%q %w", redact.URL(text), reach.CheckHost(u.Hostname()))
	case u.Port() != "" && reach.CheckPort(u.Port()) != nil:
		return fmt.Errorf("%q %w", redact.URL(text), reach.CheckPort(u.Port()))
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%q has more than scheme, host, port and path", redact.URL(text))
	}
	return nil
}

// errStatus is an answer without success.
type errStatus struct {
	path string
	code int
}

func (e errStatus) Error() string { return fmt.Sprintf("%s answers %d", e.path, e.code) }

// pathMissing reports whether an error of getBody says that the engine does not have the path.
func pathMissing(err error) bool {
	var status errStatus
	return errors.As(err, &status) && (status.code == http.StatusNotFound || status.code == http.StatusMethodNotAllowed)
}

// errSilent is why an engine without a path that tells its ranks is not taken for an older one.
var errSilent = errors.New("it tells its ranks no more, and they are still there")

// askEngine asks e, an engine at one address, for its publishers, its model and its block size. It keeps no connection
// for the next time, so that the rules judge the address each time.
func (m *Manager) askEngine(ctx context.Context, t *Target, address netip.Addr, e *engine) (Engine, error) {
	found, err := m.askPaths(ctx, t, address, e)
	switch {
	case err == nil && len(found.Ranks) == 0:
		err = found.Faulty[0].err
	case err == nil:
		e.tells = !found.Guessed
	}
	return found, err
}

// askPaths asks the paths of vLLM, and of SGLang where an engine does not have them.
func (m *Manager) askPaths(ctx context.Context, t *Target, address netip.Addr, known *engine) (Engine, error) {
	if t.URL == "" {
		return Engine{Ranks: []Rank{{t.Rank, t.Endpoint, t.ReplayEndpoint, t.SnapshotEndpoint}}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	transport := m.transportTo(t, address)
	defer transport.CloseIdleConnections()
	client := &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
	host := t.host()
	if address.IsValid() {
		host = address.String()
	}
	e := Engine{Type: "vLLM"}
	body, err := m.getBody(ctx, client, t, "/kv_event_sources")
	switch {
	case err == nil:
		if e.Ranks, e.Faulty, err = vllmRanks(body, host); err != nil {
			return e, err
		}
	case !pathMissing(err):
		return e, err
	default:
		body, err = m.getBody(ctx, client, t, "/server_info")
		if err == nil {
			return sglangEngine(body, host)
		}
		if !pathMissing(err) {
			return e, err
		}
		if known.tells && known.alive {
			return e, errSilent // its server, or one before it, is being started
		}
		// An older vLLM: its port is a convention.
		at := "tcp://" + net.JoinHostPort(host, strconv.Itoa(vllmPort+t.Rank))
		e.Ranks, e.Guessed = []Rank{{Rank: t.Rank, Endpoint: at}}, true
	}
	if body, err = m.getBody(ctx, client, t, "/v1/models"); err == nil {
		current := ""
		if t.Model == "" && len(known.names) > 0 {
			current = known.names[0]
		}
		e.Model, e.Aliases, err = namesOf(body, current)
	}
	if err != nil && (t.Model == "" || e.Guessed && known.tells) {
		return e, err
	}
	return e, nil
}

// getBody asks an engine for a path, and returns the body of its answer. It returns an errStatus for an answer without success.
func (m *Manager) getBody(ctx context.Context, client *http.Client, t *Target, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(t.URL, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	if t.Static && m.opts.TokenFile != "" {
		token, err := os.ReadFile(m.opts.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("discovery.token_file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := client.Do(req)
	if err != nil {
		var failed *url.Error // it repeats the URL, which operators have configured and see next to the reason
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return nil, fmt.Errorf("no answer to GET %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errStatus{path, resp.StatusCode}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("%s answers more than %d bytes", path, maxBody)
	}
	return body, err
}

// transportTo returns what carries requests to an address of the target, or to any that its name has if the address is not
// valid. It refuses to dial what the rules for clients do not allow.
func (m *Manager) transportTo(t *Target, address netip.Addr) *http.Transport {
	dialer := net.Dialer{Timeout: askTimeout}
	if !t.Static && m.opts.Rules != nil {
		dialer.Control = func(_, at string, _ syscall.RawConn) error {
			if rules := m.opts.Rules(); rules != nil {
				if to, err := netip.ParseAddrPort(at); err != nil || !rules.AllowsTCP(to) {
					return fmt.Errorf("%s is not an address that register.allow allows", at)
				}
			}
			return nil
		}
	}
	return &http.Transport{
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, network, at string) (net.Conn, error) {
			if _, port, err := net.SplitHostPort(at); err == nil && address.IsValid() {
				at = net.JoinHostPort(address.String(), port)
			}
			return dialer.DialContext(ctx, network, at)
		},
	}
}
