package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// echo is an external processor that continues whatever comes, and calls on for each message.
type echo struct {
	extproc.UnimplementedExternalProcessorServer
	on func()
}

func (e echo) Process(rpc extproc.ExternalProcessor_ProcessServer) error {
	for {
		if _, err := rpc.Recv(); err != nil {
			return nil
		}
		if e.on != nil {
			e.on()
		}
		if err := rpc.Send(&extproc.ProcessingResponse{}); err != nil {
			return err
		}
	}
}

// serve starts a Server and returns a connection to it.
func serve(t *testing.T, p extproc.ExternalProcessorServer, o Options, with credentials.TransportCredentials) (*Server, *grpc.ClientConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(p, o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(with))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return s, conn
}

const service = "envoy.service.ext_proc.v3.ExternalProcessor"

func TestHealth(t *testing.T) {
	var ready atomic.Bool
	s, conn := serve(t, echo{}, Options{Ready: ready.Load}, insecure.NewCredentials())
	client := healthpb.NewHealthClient(conn)
	f := func(of string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: of})
		if err != nil || got.GetStatus() != want {
			t.Errorf("%q is %s (%v), want %s", of, got.GetStatus(), err, want)
		}
	}
	const yes, no = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	f("liveness", yes)
	for _, of := range []string{"", "readiness", service} {
		f(of, no)
	}
	ready.Store(true)
	for _, of := range []string{"", "liveness", "readiness", service} {
		f(of, yes)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: %v", err)
	}
	all, err := client.List(t.Context(), &healthpb.HealthListRequest{})
	if err != nil || len(all.GetStatuses()) != 4 || all.GetStatuses()[service].GetStatus() != yes {
		t.Errorf("list %v: %v", all, err)
	}

	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
			t.Fatalf("watched %s (%v), want %s", m.GetStatus(), err, want)
		}
	}
	next(yes)
	ready.Store(false)
	next(no)
	ready.Store(true)
	next(yes)
	s.health.stop()
	next(no)
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("watch of a picker that stops: %v", err)
	}
	f("readiness", no)
	f("liveness", yes)
}

func TestReflection(t *testing.T) {
	_, conn := serve(t, echo{}, Options{}, insecure.NewCredentials())
	r, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := r.Send(list); err != nil {
		t.Fatal(err)
	}
	m, err := r.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range m.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{service, "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services %q lack %q", names, want)
		}
	}
}

// TestStop sees that a stream under way ends in peace, and is cut where the time for it is over.
func TestStop(t *testing.T) {
	for _, patient := range []bool{true, false} {
		s, conn := serve(t, echo{}, Options{}, insecure.NewCredentials())
		stream, err := extproc.NewExternalProcessorClient(conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exchange := func() error {
			if err := stream.Send(&extproc.ProcessingRequest{}); err != nil {
				return err
			}
			_, err := stream.Recv()
			return err
		}
		if err := exchange(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() {
			s.Stop(ctx)
			close(stopped)
		}()
		<-s.health.stopping
		if patient {
			if err := exchange(); err != nil {
				t.Errorf("a stream under way: %v", err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Error(err)
			}
		} else {
			cancel()
		}
		<-stopped
		cancel()
		if _, err := stream.Recv(); patient != (err.Error() == "EOF") {
			t.Errorf("patient %t: %v", patient, err)
		}
	}
}

// TestLargeMessage sends a whole body at once, as BUFFERED does.
func TestLargeMessage(t *testing.T) {
	for limit, want := range map[int]codes.Code{0: codes.OK, 1 << 20: codes.ResourceExhausted} {
		_, conn := serve(t, echo{}, Options{MaxMessage: limit}, insecure.NewCredentials())
		stream, err := extproc.NewExternalProcessorClient(conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{
			RequestBody: &extproc.HttpBody{Body: make([]byte, 8<<20)},
		}}); err != nil && want == codes.OK {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != want && (want == codes.OK || err == nil) {
			t.Errorf("limit %d: %v, want %s", limit, err, want)
		}
	}
}

func TestSelfSigned(t *testing.T) {
	config, err := SelfSignedTLS()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(leaf)
	_, conn := serve(t, echo{}, Options{TLS: config}, credentials.NewTLS(&tls.Config{RootCAs: trusted, ServerName: "conductor-picker"}))
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	_, conn = serve(t, echo{}, Options{TLS: config}, insecure.NewCredentials())
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
}

// TestFileTLS replaces the files, first by halves.
func TestFileTLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	age := 0
	write := func(name, kind string, der []byte) {
		t.Helper()
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		// File systems may keep times too coarsely to tell two writes of a test apart.
		age++
		at := time.Unix(1_000_000_000+int64(age), 0)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	pair := func() (cert, key []byte) {
		t.Helper()
		c, err := SelfSignedTLS()
		if err != nil {
			t.Fatal(err)
		}
		key, err = x509.MarshalPKCS8PrivateKey(c.Certificates[0].PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return c.Certificates[0].Certificate[0], key
	}
	if _, err := FileTLS(certFile, keyFile, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("no files: %v", err)
	}
	cert1, key1 := pair()
	cert2, key2 := pair()
	write(certFile, "CERTIFICATE", cert1)
	write(keyFile, "PRIVATE KEY", key2)
	if _, err := FileTLS(certFile, keyFile, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "tls.key") {
		t.Errorf("files that do not fit: %v", err)
	}
	write(keyFile, "PRIVATE KEY", key1)
	config, err := FileTLS(certFile, keyFile, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	f := func(what string, want []byte) {
		t.Helper()
		got, err := config.GetCertificate(nil)
		if err != nil || !slices.Equal(got.Certificate[0], want) {
			t.Errorf("%s: not the certificate that was wanted (%v)", what, err)
		}
	}
	f("at first", cert1)
	write(certFile, "CERTIFICATE", cert2)
	f("half replaced", cert1)
	write(keyFile, "PRIVATE KEY", key2)
	f("replaced", cert2)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	f("removed", cert2)
	write(certFile, "CERTIFICATE", cert1)
	write(keyFile, "PRIVATE KEY", key1)
	f("back", cert1)
}
