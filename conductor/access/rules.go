package access

import (
	"net/http"
	"strings"
)

// rule is what a route asks of a client.
type rule struct {
	role    Roles
	open    bool // answered without credentials
	page    bool // open on a server whose clients have credentials: a browser sends none for a page
	whole   bool // about the server as a whole: for clients of every tenant
	change  bool // changes something, so that no web page may ask for it
	audited bool // each call has a line in the audit log
	forward bool // a replica that does not serve the model sends the request on to one that does
	often   bool // routers make it for every request, so that limits.client_changes does not count it
}

// rules are those of the routes of all dialects, by method and path without the prefix of a dialect.
var rules = map[string]rule{
	"GET /":             {open: true},
	"GET /health":       {open: true},
	"GET /ready":        {open: true},
	"GET /openapi.yaml": {open: true},

	"GET /ui":       {role: Admin, page: true},
	"GET /ui/*file": {role: Admin, page: true},

	"GET /docs":       {role: Admin, page: true},
	"GET /docs/*page": {role: Admin, page: true},

	"POST /query":                {role: Query, forward: true},
	"POST /query_by_hash":        {role: Query, forward: true},
	"POST /query_batch":          {role: Query, forward: true},
	"POST /query_tiered_by_hash": {role: Query, forward: true},
	"POST /candidates":           {role: Query, forward: true},
	"GET /instances":             {role: Query},
	"GET /services":              {role: Query},
	"GET /workers":               {role: Query},

	"POST /grpc/:service/:method": {role: Query, change: true, often: true, forward: true}, // what replicas send on of gRPC

	"POST /routed":               {role: Query, change: true, often: true, forward: true},
	"DELETE /routed/*id":         {role: Query, change: true, often: true, forward: true},
	"POST /feedback":             {role: Query, change: true, often: true, forward: true},
	"POST /register":             {role: Register, change: true, audited: true},
	"POST /lmcache/events":       {role: Register, change: true},
	"POST /unregister":           {role: Register, change: true, audited: true},
	"POST /test/pause_listener":  {role: Register, change: true, audited: true},
	"POST /test/resume_listener": {role: Register, change: true, audited: true},

	"GET /metrics": {role: Metrics, whole: true},

	"GET /dump":           {role: Peer, audited: true},
	"GET /admin/digest":   {role: Peer},
	"GET /admin/snapshot": {role: Peer, whole: true, audited: true},

	"GET /global_view":          {role: Admin, audited: true},
	"GET /admin/events":         {role: Admin, audited: true},
	"GET /admin/stats":          {role: Admin},
	"GET /admin/source":         {role: Admin},
	"GET /admin/settings":       {role: Admin, whole: true},
	"GET /admin/live":           {role: Admin},
	"GET /admin/queries":        {role: Admin},
	"GET /admin/prefixes":       {role: Admin},
	"GET /admin/drain":          {role: Admin},
	"GET /admin/cluster":        {role: Admin},
	"POST /admin/explain":       {role: Admin, audited: true, forward: true},
	"GET /admin/check":          {role: Admin, whole: true, audited: true},
	"GET /peers":                {role: Admin, whole: true},
	"POST /register_peer":       {role: Admin, whole: true, change: true, audited: true},
	"POST /deregister_peer":     {role: Admin, whole: true, change: true, audited: true},
	"POST /admin/reload":        {role: Admin, whole: true, change: true, audited: true},
	"GET /debug/pprof/:profile": {role: Admin, whole: true, audited: true},
	"POST /reopen_logs":         {role: Admin, whole: true, change: true, audited: true},
}

// calls are the rules of the methods of gRPC.
var calls = map[string]rule{
	"/kvconductor.v1.Conductor/Query":                                {role: Query, forward: true},
	"/kvconductor.v1.Conductor/Candidates":                           {role: Query, forward: true},
	"/kvconductor.v1.Conductor/QueryBatch":                           {role: Query, forward: true},
	"/kvconductor.v1.Conductor/Watch":                                {role: Query, forward: true},
	"/kvconductor.v1.Conductor/Routed":                               {role: Query, forward: true},
	"/kvconductor.v1.Conductor/RoutedStream":                         {role: Query}, // its requests are sent on as those of Routed
	"/kvconductor.v1.Conductor/TakeBack":                             {role: Query},
	"/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix":                 {role: Query, forward: true},
	"/grpc.health.v1.Health/Check":                                   {open: true},
	"/grpc.health.v1.Health/List":                                    {open: true},
	"/grpc.health.v1.Health/Watch":                                   {open: true},
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {open: true},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {open: true},
}

// prefixes are those under which the routes of dialects are mounted once more.
var prefixes = []string{"/conductor/v1", "/dynamo/v1"}

// ruleOf returns the rule of a route, and whether there is one. pattern is the path as the
// router has it.
func ruleOf(method, pattern string) (rule, bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, p := range prefixes {
		if rest, under := strings.CutPrefix(pattern, p); under {
			pattern = rest
			break
		}
	}
	r, ok := rules[method+" "+pattern]
	return r, ok
}

// Forwarded reports whether replicas send calls of a method on to each other.
func Forwarded(method string) bool { return calls[method].forward }
