package main

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/compat/dynamo"
	"example.com/conductor/compat/mooncake"
	"example.com/conductor/compat/sglang"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/body"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
)

// listeners returns the configured listeners. Those of the Dynamo dialect are late: to its
// clients a refused connection means "not ready".
func listeners(all []config.Listener) []server.Listener {
	out := make([]server.Listener, len(all))
	for i, l := range all {
		out[i] = server.Listener{Address: l.Address, Dialect: l.Dialect, Late: l.Dialect == config.Dynamo}
	}
	return out
}

// listenerTimeouts returns the timeouts of connections.
func listenerTimeouts(limits config.Limits) server.Timeouts {
	return server.Timeouts{Read: fixed.ReadTimeout, Idle: limits.IdleTimeout}
}

// dialectHandler serves one dialect at the root, and the others under their prefixes. Where the
// published Conductor dialect is, requests may ask for that of the second server.
func dialectHandler(root string, c *conductor.Conductor, d *dynamo.Dialect, opts admin.Options) http.Handler {
	r := dialectRouter(root, c, d, opts)
	if root == config.Dynamo {
		return r // its clients know a path with a slash too many as one that is not there
	}
	return server.TidyPaths(r, r.Routes())
}

// dialectRouter returns the router of dialectHandler.
func dialectRouter(root string, c *conductor.Conductor, d *dynamo.Dialect, opts admin.Options) *gin.Engine {
	second := mooncake.Config{Conductor: c, MaxBody: opts.Dialect.MaxBody, MaxTokens: opts.Dialect.MaxTokens,
		Admission: opts.Dialect.Admission,
		Version:   opts.Dialect.Version}
	inJSON := mooncake.New(second)
	second.Codec = body.Msgpack
	inMsgpack := mooncake.New(second)
	published := server.Dialects{conductorhttp.Dialect(c, opts.Dialect), inMsgpack, inJSON}

	opts.Home = root == config.Conductor // the other dialects have a / of their own, or none
	r := admin.New(c, opts)
	switch root {
	case config.Dynamo:
		d.MountRoot(r)
	case config.ConductorMsgpack:
		server.Dialects{alone(second, body.Msgpack)}.MountRoot(r)
	case config.ConductorJSONV2:
		server.Dialects{alone(second, body.JSON)}.MountRoot(r)
	default:
		published.MountRoot(r)
	}
	published.Mount(r.Group("/conductor/v1"))
	d.Mount(r.Group("/dynamo/v1"))
	if root == config.Conductor {
		r.Use(redirectSlash(r.Routes()))
	}
	return r
}

// alone returns the dialect of the second server in a codec, for a path that has no other dialect.
func alone(cfg mooncake.Config, codec body.Codec) server.Dialect {
	cfg.Codec, cfg.Alone = codec, true
	return mooncake.New(cfg)
}

// redirectSlash redirects a request that has no route because it lacks the slash at the end of its path, such as that of a page
// with links. The router itself would do so before the guard has seen the request.
func redirectSlash(routes gin.RoutesInfo) gin.HandlerFunc {
	known := make(map[string]bool)
	for _, r := range routes {
		path, _, _ := strings.Cut(r.Path, "*")
		known[r.Method+" "+path] = !strings.Contains(path, ":")
	}
	return func(g *gin.Context) {
		u := g.Request.URL
		to := url.URL{Path: u.Path + "/", RawQuery: u.RawQuery}
		if u.Opaque != "" || !known[g.Request.Method+" "+to.Path] {
			return
		}
		status := http.StatusTemporaryRedirect
		if g.Request.Method == http.MethodGet {
			status = http.StatusMovedPermanently
		}
		g.Redirect(status, to.String())
		g.Abort()
	}
}

// grpcServer returns the server of a listener of gRPC, with the services of all dialects.
func grpcServer(c *conductor.Conductor, cfg *config.Config, opts rpc.Options) *rpc.Server {
	s := rpc.NewServer(opts)
	s.Register(sglang.Desc, sglang.New(sglang.Config{Conductor: c, MaxTokens: opts.MaxTokens, Model: cfg.SGLang.Model}), sglang.Crash)
	return s
}

// onLoopback reports whether all listeners are for this machine alone.
func onLoopback(all []config.Listener) bool {
	for _, l := range all {
		host, _, _ := net.SplitHostPort(l.Address)
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
