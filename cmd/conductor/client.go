package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvconductor/conductor/access"
	"kvconductor/internal/request"
)

// client asks a running server on behalf of the commands that print tables.
type client struct {
	base string
	http http.Client
}

func newClient(base string) *client {
	return &client{base: strings.TrimRight(base, "/"), http: http.Client{Timeout: 30 * time.Second}}
}

// serverEnv names the server that commands ask.
const serverEnv = "CONDUCTOR_SERVER"

// clientFlags are the flags of commands that ask a server.
type clientFlags struct {
	server string
	files  access.ClientFiles
}

// add adds the flags to a command; named says whether --server is one.
func (f *clientFlags) add(cmd *cobra.Command, named bool) {
	fs := cmd.Flags()
	if named {
		fs.StringVar(&f.server, "server", cmp.Or(os.Getenv(serverEnv), defaultServer), "base `URL` of a Conductor listener (also "+serverEnv+")")
	}
	fs.StringVar(&f.files.CACert, "cacert", "", "`file` of the authorities that sign the server's certificate, instead of those of the system")
	fs.StringVar(&f.files.Cert, "cert", "", "`file` of the certificate to show")
	fs.StringVar(&f.files.Key, "key", "", "`file` of the key of that certificate")
	fs.StringVar(&f.files.TokenFile, "token-file", "", "`file` of the token to send")
}

// http returns a client of requests. It follows no redirects: the token is for the server alone.
func (f *clientFlags) http(timeout time.Duration) (*http.Client, error) {
	to, err := access.NewTransport(f.files, http.DefaultTransport.(*http.Transport))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: to, Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// client returns a client of the server.
func (f *clientFlags) client() (*client, error) {
	asks, err := f.http(30 * time.Second)
	if err != nil {
		return nil, err
	}
	return &client{base: strings.TrimRight(f.server, "/"), http: *asks}, nil
}

// get decodes the answer of GET path into out.
func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

// post sends in as JSON and decodes the answer into out.
func (c *client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, path, body, out)
}

func (c *client) do(ctx context.Context, method, path string, body []byte, out any) error {
	status, answer, err := request.Do(ctx, &c.http, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("no answer from %s: %w", c.base, err)
	}
	if status != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(answer, &e) == nil && e.Error != "" {
			return fmt.Errorf("%s%s answers %d: %s", c.base, path, status, e.Error)
		}
		return fmt.Errorf("%s%s answers %d", c.base, path, status)
	}
	return json.Unmarshal(answer, out)
}
