package discovery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"example.com/conductor/redact"
)

// resolveHost asks the system's resolver.
func resolveHost(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// addressesOf returns the addresses of a target. If its name has addresses of IPv4 and of IPv6, it returns those of IPv4 alone,
// because most names with both mean one machine.
func (m *Manager) addressesOf(t *target) ([]netip.Addr, error) {
	if t.URL == "" {
		return []netip.Addr{{}}, nil // its endpoints say where it is
	}
	host := hostOf(t.URL)
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	found, err := m.opts.Resolve(t.ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redact.URL(t.URL), err)
	}
	var all []netip.Addr
	for _, a := range found {
		all = append(all, a.Unmap())
	}
	if slices.ContainsFunc(all, netip.Addr.Is4) {
		all = slices.DeleteFunc(all, netip.Addr.Is6)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: %s has no address", redact.URL(t.URL), host)
	}
	if len(all) > maxAddresses {
		return nil, fmt.Errorf("%s: %s has %d addresses, and %d are followed at most", redact.URL(t.URL), host, len(all), maxAddresses)
	}
	return all, nil
}

// updateEngines brings the engines of a target in line with the addresses of its name. If the name does not resolve, it returns
// the error, and the engines stay.
func (m *Manager) updateEngines(t *target, now time.Time) error {
	all, err := m.addressesOf(t)
	if err != nil {
		return err
	}
	t.many = t.many || len(all) > 1
	for addr, e := range t.engines {
		switch present := slices.Contains(all, addr); {
		case present:
			e.missing = time.Time{}
		case e.missing.IsZero():
			e.missing = now
		}
		if !e.missing.IsZero() && (!t.many || now.Sub(e.missing) >= graceTime) {
			m.dropEngine(t, e)
			delete(t.engines, addr)
		}
	}
	for _, addr := range all {
		name := t.Instance
		if t.many {
			name += "@" + addr.String()
		}
		e := t.engines[addr]
		if e != nil && e.instance != name {
			m.dropEngine(t, e) // the name has become a fleet
			e = nil
		}
		if e == nil {
			t.engines[addr] = &engine{instance: name, next: now}
		}
	}
	return nil
}
