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

	"example.com/conductor/redact"
)

const (
	maxBody    = 4 << 20 // SGLang's server_info has all its settings
	askTimeout = 5 * time.Second
)

// errStatus is an answer without success.
type errStatus struct {
	url  string
	code int
}

func (e errStatus) Error() string { return fmt.Sprintf("GET %s answers %d", e.url, e.code) }

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
	host := hostOf(t.URL)
	if address.IsValid() {
		host = address.String()
	}
	e := Engine{Type: "vLLM"}
	base := baseOf(t.URL)
	sources, info, models := base+"/kv_event_sources", base+"/server_info", base+"/v1/models"
	body, noSources := m.getBody(ctx, client, t, sources)
	switch {
	case noSources == nil:
		var err error
		if e.Ranks, e.Faulty, err = vllmRanks(body, host); err != nil {
			return e, answerError(sources, err)
		}
		nameFaults(e.Faulty, sources)
	case !pathMissing(noSources):
		return e, noSources
	default:
		body, err := m.getBody(ctx, client, t, info)
		if err == nil {
			if e, err = sglangEngine(body, host); err != nil {
				return e, answerError(info, err)
			}
			nameFaults(e.Faulty, info)
			return e, nil
		}
		if !pathMissing(err) {
			return e, err
		}
		if known.tells && known.alive {
			return e, fmt.Errorf("%w: %w", noSources, errSilent) // its server, or one before it, is being started
		}
		// An older vLLM: its port is a convention.
		at := "tcp://" + net.JoinHostPort(host, strconv.Itoa(vllmPort+t.Rank))
		e.Ranks, e.Guessed = []Rank{{Rank: t.Rank, Endpoint: at}}, true
	}
	body, err := m.getBody(ctx, client, t, models)
	if err == nil {
		current := ""
		if t.Model == "" && len(known.names) > 0 {
			current = known.names[0]
		}
		var names servedNames
		if names, err = namesOf(body, current); err != nil {
			err = answerError(models, err)
		}
		e.Model, e.Aliases, e.Adapters = names.model, names.aliases, names.adapters
	}
	switch {
	case err == nil:
		e.drafter = m.askDrafter(ctx, client, t, base, known)
		return e, nil
	case e.Guessed && pathMissing(err):
		return e, fmt.Errorf("%w, and neither %s nor %s is there: is %s the base URL of an engine's HTTP server?", noSources,
			redact.URL(info), redact.URL(models), redact.URL(base))
	case t.Model == "" || e.Guessed && known.tells:
		return e, err
	}
	e.drafter = m.askDrafter(ctx, client, t, base, known)
	return e, nil
}

// answerError says at which URL an engine gave an answer that cannot be used.
func answerError(at string, err error) error { return fmt.Errorf("GET %s: %w", redact.URL(at), err) }

// nameFaults says at which URL an engine named faulty ranks.
func nameFaults(faulty []faultyRank, at string) {
	for i := range faulty {
		faulty[i].err = answerError(at, faulty[i].err)
	}
}

// getBody asks an engine at a URL, and returns the body of its answer. It returns an errStatus for an answer without success.
func (m *Manager) getBody(ctx context.Context, client *http.Client, t *Target, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
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
		var failed *url.Error // it repeats the URL
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return nil, fmt.Errorf("no answer to GET %s: %w", redact.URL(at), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errStatus{redact.URL(at), resp.StatusCode}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("the answer to GET %s ends early: %w", redact.URL(at), err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("GET %s answers more than %d bytes", redact.URL(at), maxBody)
	}
	return body, nil
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
