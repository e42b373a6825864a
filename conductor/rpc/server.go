// Package rpc serves gRPC:
//
//	connection --> tap: access.Guard --> wire: memory, time --> unary: slot --> service of a dialect
//	                     |                      |                 |
//	       UNAUTHENTICATED, PERMISSION_DENIED,  |             RESOURCE_EXHAUSTED
//	       RESOURCE_EXHAUSTED            RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED
//
//	another replica serves: Forwarder --> Carried there, over HTTP --> service --> bytes of its answer
//
// A Server has one listener. It has the services of conductor.proto and those that dialects
// register, health, and reflection. The tap decides before a message is read. A message gets memory
// before it is there (wire.go), and a unary call a slot among all queries of the server, as one over HTTP
// does. Watch is a long call: it takes a slot for each answer.
//
// Concurrency: a Server is safe for concurrent use once it serves.
package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
)

// Options configures a Server.
type Options struct {
	Conductor *conductor.Conductor
	// MaxBody bounds a message in bytes (limits.max_body).
	MaxBody int64
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Idle is how long a connection may be without a call, and a peer that is gone keeps one
	// (limits.idle_timeout); 0 is for ever.
	Idle time.Duration
	// Patience is how long a message may take to come; 0 is for ever.
	Patience time.Duration
	// Admission bounds the queries at once, Budget the bytes of messages and answers; nil is no bound.
	Admission *server.Admission
	Budget    *server.Budget
	// Watches bounds the calls of Watch. It must be set.
	Watches *Watches
	// Guard checks every call; nil lets each pass as that of an operator.
	Guard *access.Guard
	// Forward sends calls to the replicas that serve their models; nil sends none.
	Forward Forwarder
	// TLS has the certificates; nil serves without TLS.
	TLS *tls.Config
	// Ready is what health tells; nil is always.
	Ready func() bool
	// Metrics counts the calls.
	Metrics *Metrics
	Log     zerolog.Logger
}

// Bounds of one connection.
const (
	maxStreams = 256      // calls at once, as over HTTP/2
	maxHeader  = 16 << 10 // bytes of metadata of a call
	// maxReflections is how many calls of reflection are open at once over all connections: anybody may make them.
	maxReflections = 64
	// Bytes of messages that a client may send ahead: as over HTTP/2. grpc lets it send more of a message that is read.
	connWindow   = 2 << 20
	streamWindow = 1 << 20
	// How long a connection may take for TLS and the preface of HTTP/2.
	handshakeTimeout = 10 * time.Second
	// leastPing is the least time between pings of a client. One that pings more often is
	// disconnected.
	leastPing = 10 * time.Second
	// pingTimeout is how long a peer may take to answer a ping.
	pingTimeout = 20 * time.Second
)

// Server is the gRPC server of one listener.
type Server struct {
	opts     Options
	grpc     *grpc.Server
	crash    map[string]codes.Code // by method: what a broken invariant is answered with
	carried  map[string]carried    // by method: what other replicas may send on
	brief    *bounds.Slots         // of reflection
	stopping chan struct{}         // closed by Shutdown: watches end
	stop     sync.Once
}

// NewServer returns a server with the services of conductor.proto.
func NewServer(opts Options) *Server {
	s := &Server{
		opts: opts, crash: make(map[string]codes.Code), carried: make(map[string]carried), stopping: make(chan struct{}),
		brief: bounds.NewSlots(maxReflections, quarter(maxReflections)),
	}
	limits := &arrivals{budget: opts.Budget, most: opts.MaxBody, patience: opts.Patience, refused: opts.Metrics.refused}
	alive := keepalive.ServerParameters{MaxConnectionIdle: opts.Idle, Time: opts.Idle, Timeout: pingTimeout}
	settings := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(opts.MaxBody)), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeader),
		grpc.ReadBufferSize(0),
		grpc.InitialConnWindowSize(connWindow), grpc.InitialWindowSize(streamWindow), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(alive), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing,
			PermitWithoutStream: true}),
		grpc.InTapHandle(s.tap), grpc.StatsHandler(opts.Metrics), grpc.Creds(newCredentials(opts.TLS, limits)),
	}
	s.grpc = grpc.NewServer(settings...)
	s.Register(&pb.Conductor_ServiceDesc, &service{server: s}, codes.Internal)
	s.Register(&grpc_health_v1.Health_ServiceDesc, newHealth(opts.Ready, s.grpc.GetServiceInfo, s.stopping), codes.Unavailable)
	reflection.Register(reflected{s})
	return s
}

// Register adds a service. crash is the code for a broken invariant in one of its handlers. Call it
// before Serve.
func (s *Server) Register(desc *grpc.ServiceDesc, handler any, crash codes.Code) {
	s.registerReceived(desc, handler, false)
	add := func(name string, c carried) {
		method := "/" + desc.ServiceName + "/" + name
		s.crash[method] = crash
		if access.Forwarded(method) {
			s.carried[method] = c
		}
	}
	for i := range desc.Methods {
		add(desc.Methods[i].MethodName, carried{handler: handler, unary: &desc.Methods[i]})
	}
	for i := range desc.Streams {
		add(desc.Streams[i].StreamName, carried{handler: handler, stream: &desc.Streams[i]})
	}
}

// Methods returns the methods of all services, as /package.Service/Method.
func (s *Server) Methods() (all []string) {
	for name, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			all = append(all, "/"+name+"/"+m.Name)
		}
	}
	return all
}

// Serve answers calls of the connections of l.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Shutdown takes no more calls, ends watches, and waits for other calls until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop.Do(func() { close(s.stopping) })
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close cuts all calls off.
func (s *Server) Close() error {
	s.stop.Do(func() { close(s.stopping) })
	s.grpc.Stop()
	return nil
}

// tap lets the guard admit a call before its message is read. Methods that the server lacks pass:
// they are answered with UNIMPLEMENTED.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, hasPeer := peer.FromContext(ctx)
	if !hasPeer {
		return ctx, errNoHeader
	}
	from := p.Addr.(wireAddr)
	server.Asks(from.Addr)
	kind, known := s.opts.Metrics.kindOf(info.FullMethodName)
	if !known {
		return ctx, nil
	}
	ctx, err := s.admit(ctx, info, p, from)
	if err != nil {
		return ctx, err
	}
	flow := access.CallerOf(ctx).Flow().Name
	if flow == "" {
		flow = from.neighbour
	}
	if ctx, err = from.wire.claim(ctx, flow, kind); err != nil {
		s.opts.Metrics.countRefused(info.FullMethodName, status.Code(err))
	}
	return ctx, err
}

// admit lets the guard admit a call. The context has its caller.
func (s *Server) admit(ctx context.Context, info *tap.Info, p *peer.Peer, from wireAddr) (context.Context, error) {
	if s.opts.Guard == nil {
		return ctx, nil
	}
	call := access.Call{
		Method: info.FullMethodName, Authority: first(info.Header, ":authority"), Authorization: first(info.Header, "authorization"),
		Address: from.String(), Reached: p.LocalAddr,
	}
	if t, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		call.Certificate = t.State.PeerCertificates[0]
	}
	caller, err := s.opts.Guard.Admit(call)
	if err != nil {
		err = statusOf(err)
		s.opts.Metrics.countRefused(info.FullMethodName, status.Code(err))
		return ctx, err
	}
	if !caller.Open() {
		server.Admits(from.Addr)
	}
	return caller.With(ctx), nil
}

// first returns the first value of metadata.
func first(md metadata.MD, name string) string {
	if all := md.Get(name); len(all) > 0 {
		return all[0]
	}
	return ""
}

// unary runs a call within a slot.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer s.recover(info.FullMethod, &err)
	caller := access.CallerOf(ctx)
	if caller.Open() {
		return handle(ctx, req)
	}
	defer func() { caller.Done(httpStatus(status.Code(err))) }()
	clock := stage.Of(ctx) // the call ends in the stage Send, or in the one that refuses it
	if err := ctx.Err(); err != nil {
		return nil, statusOf(err)
	}
	caller.Charge(proto.Size(req.(proto.Message)))
	flow := caller.Flow()
	clock.Enter(stage.Admit)
	work := func() error {
		clock.Enter(stage.Parse)
		defer clock.Enter(stage.Send)
		answer, err = handle(ctx, req)
		return err
	}
	if info.FullMethod == pb.Conductor_TakeBack_FullMethodName {
		err = work() // it needs no processor, and may wait for other replicas
	} else {
		err = s.runInSlot(ctx, flow, work)
	}
	if answer, err = s.forward(ctx, info.FullMethod, req, answer, err); err != nil {
		return nil, statusOf(err)
	}
	return answer, s.opts.Metrics.reserveAnswer(ctx, s.opts.Budget, flow.Name, proto.Size(answer.(proto.Message)))
}

// runInSlot runs work within a slot among all queries. It returns the error of work, or
// server.ErrBusy.
func (s *Server) runInSlot(ctx context.Context, flow bounds.Flow, work func() error) error {
	if err := s.opts.Admission.Enter(ctx, flow); err != nil {
		return err
	}
	defer s.opts.Admission.Leave(flow)
	return work()
}

// reserve takes memory for a further message of a long call. It returns body.ErrMemory.
func (s *Server) reserve(caller *access.Caller, message proto.Message) (release func(), err error) {
	bytes := proto.Size(message)
	caller.Charge(bytes)
	release, err = s.opts.Budget.Reserve(caller.Flow().Name, int64(bytes))
	return release, err
}

// stream runs a long call.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer s.recover(info.FullMethod, &err)
	if err = handle(srv, stream); err != nil {
		err = statusOf(err)
	}
	access.CallerOf(stream.Context()).Done(httpStatus(status.Code(err)))
	return err
}

// recover turns a panic into an error that costs one call.
func (s *Server) recover(method string, err *error) {
	if p := recover(); p != nil {
		s.opts.Log.Error().Interface("panic", p).Str("rpc", method).Str("stack", string(debug.Stack())).Msg("request failed")
		code, known := s.crash[method]
		if !known {
			code = codes.Internal
		}
		*err = status.Error(code, "internal error")
	}
}

// errStopping ends watches of a server that leaves.
var errStopping = errors.New("the server is about to leave")
