package watch

import "time"

// Process is the process of the server, and who may ask it what.
type Process struct {
	CPUs        int           `json:"cpus"` // that it may use
	CPUTime     time.Duration `json:"-"`    // since the start
	CPU         float64       `json:"cpu"`  // CPUs in use, on average since the collection before
	Memory      int64         `json:"memory_bytes"`
	MemoryLimit int64         `json:"memory_limit_bytes"` // 0 where the system tells none
	Connections int           `json:"connections"`        // of clients, over HTTP and gRPC
	Addresses   int           `json:"addresses"`          // from which they come
	MostOpen    int           `json:"connections_limit"`  // 0 for no bound
	Viewers     int           `json:"viewers"`            // of /admin/live
	Auth        Auth          `json:"auth"`
}

// Auth is who may ask the server what, without a secret or a name of a client.
type Auth struct {
	File         string         `json:"file"` // auth.file, "" without one
	Tokens       int            `json:"tokens"`
	Certificates int            `json:"certificates"`
	Roles        map[string]int `json:"roles"`     // credentials by role; those with admin count there alone
	Tenants      map[string]int `json:"tenants"`   // credentials by tenant, "*" for every tenant; at most 32 tenants
	Others       int            `json:"others"`    // further tenants
	Anonymous    []string       `json:"anonymous"` // roles of clients without credentials
	Loopback     []string       `json:"loopback"`  // roles of those on the same machine
}

// processOf returns the process of the server, nil where it is not known. mu is held.
func (h *Hub) processOf() *Process {
	if h.now.process == nil {
		return nil
	}
	p := *h.now.process
	p.CPU, p.Viewers = h.now.cpu, h.viewers
	return &p
}

// addProcess completes a collection with the process of the server.
func (c *collection) addProcess(p Process, old *collection) {
	c.process = &p
	if old == nil || old.process == nil {
		return
	}
	if passed := c.at.Sub(old.at); passed >= minPace {
		c.cpu = (p.CPUTime - old.process.CPUTime).Seconds() / passed.Seconds()
	} else {
		c.cpu = old.cpu
	}
}
