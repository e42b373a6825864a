package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
	"example.com/conductor/events/reach"
	"example.com/conductor/spelling"
)

// healthCommand is for orchestrators whose containers have no curl.
func healthCommand() *cobra.Command {
	asks := cli.ClientFlags{AtOnce: true}
	var asJSON *bool
	var ready bool
	cmd := &cobra.Command{
		Use:        "health",
		SuggestFor: []string{"ready", "ping", "live", "probe"},
		Short:      "Ask the server of this machine whether it is alive; the exit status says so",
		Long: `Asks a server whether it is alive or, with --ready, whether routers may rely on its
answers. The exit status is 0 if it says yes and 1 otherwise, as probes of containers
expect.

Without --server it asks the server of this machine or container. It finds the port,
and whether it has to speak TLS, in the settings that "conductor serve" reads: the file
of --config or CONDUCTOR_CONFIG_PATH, and the CONDUCTOR_… variables. If you start the
server with more flags, give the same ones to this command.

It does not verify the certificate of the server of this machine, whose name is rarely
127.0.0.1: the connection does not leave the machine, and nothing secret is sent over it.
With --cacert or --token-file it does verify. If the server asks for certificates of
clients (tls.require_client_cert), it shows the one of --cert, else that of peer.cert,
else the server's own.`,
		Example: "  conductor health --config /etc/conductor/config.yaml\n" +
			"  conductor health --ready\n" +
			"  conductor health --server conductor.example:13333 --ready",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	if server := cmd.Flags().Lookup("server"); os.Getenv(config.EnvServer) == "" {
		asks.Server, server.DefValue = "", ""
		server.Usage = strings.Replace(server.Usage, "(also", "(default the one that the settings describe; also", 1)
	}
	flags := hiddenSettings(cmd)
	asJSON = cli.JSONFlag(cmd, "print the answer of the server")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether routers may rely on its answers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !asks.Named() && !cmd.Flags().Changed("token-file") {
			asks.Files.TokenFile = "" // that of the environment is for servers that are named
		}
		answer, err := probe(cmd.Context(), &asks, flags, ready)
		if *asJSON && json.Valid(answer) {
			if failed := cli.PrintJSON(cmd.OutOrStdout(), answer); failed != nil {
				return failed
			}
			if err != nil {
				return cli.ErrReported
			}
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), "ok")
		return nil
	}
	return cmd
}

// hiddenSettings defines the flags of serve. Its help shows those that say where the server listens, the
// others are accepted so that a probe may be given the whole command line of the server.
func hiddenSettings(cmd *cobra.Command) *indexerFlags {
	var all pflag.FlagSet
	config.Flags(&all)
	flags := addIndexerFlags(&all, 0)
	all.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && f.Name != "listen" && !strings.HasPrefix(f.Name, "tls-")
		if cmd.Flags().Lookup(f.Name) == nil { // else it is about this command
			cmd.Flags().AddFlag(f)
		}
	})
	return flags
}

// probe asks the server that the user names, or else the one that the settings describe. The answer, if
// there is one, comes with the error too.
func probe(ctx context.Context, asks *cli.ClientFlags, flags *indexerFlags, ready bool) (json.RawMessage, error) {
	if asks.Named() {
		server, err := asks.Client()
		if err != nil {
			return nil, err
		}
		return probeHTTP(ctx, server, ready)
	}
	loaded, mistakes := flags.loadConfig() // a server that runs may have read them without the mistakes
	answer, err := probeOwn(ctx, asks, &loaded.Config, ready)
	if err != nil && answer == nil && mistakes != nil {
		err = fmt.Errorf("%w; the settings have mistakes, so the server may listen elsewhere:\n%w", err, mistakes)
	}
	return answer, err
}

// probeHTTP asks a server over HTTP.
func probeHTTP(ctx context.Context, server *cli.Client, ready bool) (answer json.RawMessage, err error) {
	path := "/conductor/v1/health" // every listener of HTTP has it
	if ready {
		path = "/ready"
	}
	err = server.Get(ctx, path, &answer)
	if refused := (*cli.RefusedError)(nil); ready && errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return refused.Body, errors.New(notReady(refused.Body))
	}
	return answer, err
}

// notReady says why a server is not ready, as far as its answer to GET /ready tells.
func notReady(body []byte) string {
	var r struct {
		Draining, Recovering bool
		Waiting              []struct{ Source string }
		Synced               int
		MinSources           int `json:"min_sources"`
	}
	json.Unmarshal(body, &r) // without JSON the reason stays unknown
	switch n := len(r.Waiting); {
	case r.Draining:
		return "not ready: the server is about to stop"
	case r.Recovering:
		return "not ready: the server recovers what it knew before its start"
	case n == 1:
		return fmt.Sprintf("not ready: the source %s is not synced yet", r.Waiting[0].Source)
	case n > 1:
		return fmt.Sprintf("not ready: %s %s not synced yet, the first is %s", spelling.Count(n, "source"), spelling.Agree(n, "is", "are"),
			r.Waiting[0].Source)
	case r.Synced < r.MinSources:
		return fmt.Sprintf("not ready: %s %s synced, and ready.min_sources asks for %d", spelling.Count(r.Synced, "source"),
			spelling.Agree(r.Synced, "is", "are"), r.MinSources)
	}
	return "not ready"
}

// probeOwn asks the server of this machine that settings describe.
func probeOwn(ctx context.Context, asks *cli.ClientFlags, c *config.Config, ready bool) (json.RawMessage, error) {
	at := probed(c.Listeners)
	host, port, err := net.SplitHostPort(at.Address)
	switch {
	case err != nil || port == "0" || port == "":
		return nil, fmt.Errorf("the settings name no listener with a port (%q): name the server with --server", at.Address)
	case host == "" || reach.IsWildcard(host) && !strings.Contains(host, ":"):
		host = "127.0.0.1"
	case reach.IsWildcard(host):
		host = "::1"
	}
	at.Address = net.JoinHostPort(host, port)
	var secured *tls.Config
	if c.TLS.Cert != "" {
		if secured, err = ownTLS(asks, c); err != nil {
			return nil, err
		}
	}
	if at.Dialect == config.GRPC {
		return probeGRPC(ctx, at.Address, secured, ready)
	}
	base, err := cli.BaseURL(at.Address, secured != nil)
	if err != nil {
		return nil, err
	}
	if asks.Files.CACert != "" || asks.Files.TokenFile != "" {
		server, err := asks.ClientOf(base, probeTimeout)
		if err != nil {
			return nil, err
		}
		return probeHTTP(ctx, server, ready)
	}
	web := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{TLSClientConfig: secured}, CheckRedirect: cli.KeepRedirect}
	return probeHTTP(ctx, cli.NewClient(base, web), ready)
}

// probeTimeout bounds a probe. Orchestrators have bounds of their own, which are shorter.
const probeTimeout = 30 * time.Second

// probed returns the listener to ask: one of the Conductor dialect, else another one of HTTP, else gRPC.
// Those of Dynamo's dialect come last of HTTP, because they open only once the server is ready.
func probed(all []config.Listener) (best config.Listener) {
	order := []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo, config.GRPC}
	if len(all) == 0 {
		return best
	}
	return slices.MinFunc(all, func(a, b config.Listener) int {
		return cmp.Compare(slices.Index(order, a.Dialect), slices.Index(order, b.Dialect))
	})
}

// ownTLS returns what to connect to the server of this machine with. It verifies no certificate: that would
// need a name of the server, the connection stays on this machine, where only a process that took the
// server's port could answer in its place, and the probe shows nothing that such a process could use. The
// certificate is not compared with the file either, because a server that could not read a renewed
// one goes on with the old one, and must not be killed for that.
func ownTLS(asks *cli.ClientFlags, c *config.Config) (*tls.Config, error) {
	secured := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} // #nosec G402 -- as said above
	cert, key := asks.Files.Cert, asks.Files.Key
	switch {
	case cert != "" || key != "":
	case !c.TLS.RequireClientCert:
		return secured, nil
	case c.Peer.Cert != "":
		cert, key = c.Peer.Cert, c.Peer.Key
	default:
		cert, key = c.TLS.Cert, c.TLS.Key
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate to show: %w", err)
	}
	// Shown also if the server names other authorities: its refusal says more than a missing certificate.
	secured.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return secured, nil
}

// probeGRPC asks a server that listens for gRPC alone. Any answer says that it is alive.
func probeGRPC(ctx context.Context, address string, secured *tls.Config, ready bool) (json.RawMessage, error) {
	by := insecure.NewCredentials()
	if secured != nil {
		by = credentials.NewTLS(secured)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(by), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	said, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, new(grpc_health_v1.HealthCheckRequest))
	if err != nil {
		return nil, fmt.Errorf("no answer from %s over gRPC: %s", address, grpcstatus.Convert(err).Message())
	}
	answer, err := json.Marshal(map[string]string{"status": said.Status.String()})
	if err == nil && ready && said.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = errors.New("not ready")
	}
	return answer, err
}
