// Package server serves the endpoint picker over gRPC: the external processor, health, reflection and TLS.
package server

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Options are how a Server listens.
type Options struct {
	Ready      func() bool // whether the picker can choose engines; nil is always
	TLS        *tls.Config // nil serves plain text
	MaxMessage int         // bytes of the largest message from the data plane, which in BUFFERED mode is a whole body; 64 MiB by default
}

// Server is a gRPC server with one external processor.
type Server struct {
	grpc   *grpc.Server
	health *health
}

// New returns a Server for processor.
func New(processor extproc.ExternalProcessorServer, o Options) *Server {
	if o.MaxMessage == 0 {
		o.MaxMessage = 64 << 20
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(o.MaxMessage),
		// A body should come in without waiting for window updates: the default of 64 KiB costs a large one a round trip each.
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		grpc.SharedWriteBuffer(true),
		// After Stop nobody asks the picker any more, nor reports to it.
		grpc.WaitForHandlers(true),
		// Streams of a data plane that vanished without a word must end some time. Pings of Envoy's are allowed as often as it likes to.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		// Envoy's health checks do not negotiate h2 unless they are configured to, and would fail while requests pass.
		options = append(options, grpc.Creds(credentials.NewTLSWithALPNDisabled(o.TLS)))
	}
	s := &Server{grpc: grpc.NewServer(options...), health: newHealth(o.Ready)}
	extproc.RegisterExternalProcessorServer(s.grpc, processor)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s
}

// Serve takes connections from l until Stop.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop says that the picker is not ready, takes no more requests, and waits until those under way have ended or ctx has.
func (s *Server) Stop(ctx context.Context) {
	s.health.stop()
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}
