package cli

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

	"example.com/conductor/conductor/access"
	"example.com/conductor/internal/request"
)

// Client asks a running server on behalf of the commands that print tables.
type Client struct {
	Base string // URL of the listener
	http *http.Client
}

// NewClient returns a client of the server at a base URL. It sends requests through web; if that is
// nil, without credentials.
func NewClient(base string, web *http.Client) *Client {
	if web == nil {
		web = &http.Client{Timeout: 30 * time.Second}
	}
	return &Client{Base: strings.TrimRight(base, "/"), http: web}
}

// ServerEnv is the environment variable with the URL of the server that commands ask.
const ServerEnv = "CONDUCTOR_SERVER"

// defaultServer is where a server with default settings listens.
const defaultServer = "http://127.0.0.1:13333"

// ClientFlags holds the flags of commands that ask a server.
type ClientFlags struct {
	Server string
	Files  access.ClientFiles
}

// Add adds the flags to a command, --server only if named.
func (f *ClientFlags) Add(cmd *cobra.Command, named bool) {
	fs := cmd.Flags()
	if named {
		fs.StringVar(&f.Server, "server", cmp.Or(os.Getenv(ServerEnv), defaultServer), "base `URL` of a Conductor listener (also "+ServerEnv+")")
	}
	fs.StringVar(&f.Files.CACert, "cacert", "", "`file` of the authorities that sign the server's certificate, instead of those of the system")
	fs.StringVar(&f.Files.Cert, "cert", "", "`file` of the certificate to show")
	fs.StringVar(&f.Files.Key, "key", "", "`file` of the key of that certificate")
	fs.StringVar(&f.Files.TokenFile, "token-file", "", "`file` of the token to send")
}

// HTTP returns an HTTP client with the credentials of the flags. It follows no redirects, because the
// token is only for the server that the user named.
func (f *ClientFlags) HTTP(timeout time.Duration) (*http.Client, error) {
	to, err := access.NewTransport(f.Files, http.DefaultTransport.(*http.Transport))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: to, Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// Client returns a client of the server.
func (f *ClientFlags) Client() (*Client, error) {
	asks, err := f.HTTP(30 * time.Second)
	if err != nil {
		return nil, err
	}
	return NewClient(f.Server, asks), nil
}

// Get decodes the answer of GET path into out.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.Do(ctx, http.MethodGet, path, nil, out)
}

// Post sends in as JSON and decodes the answer into out.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.Do(ctx, http.MethodPost, path, body, out)
}

// Ask makes a request, in JSON if it has a body, and returns the status and the body of the answer.
func (c *Client) Ask(ctx context.Context, method, path string, body []byte) (status int, answer []byte, err error) {
	return request.Do(ctx, c.http, method, c.Base+path, body)
}

// Do makes a request and decodes the answer into out. It returns an error for every status but 200.
func (c *Client) Do(ctx context.Context, method, path string, body []byte, out any) error {
	status, answer, err := c.Ask(ctx, method, path, body)
	if err != nil {
		return fmt.Errorf("no answer from %s: %w", c.Base, err)
	}
	if status != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(answer, &e) == nil && e.Error != "" {
			return fmt.Errorf("%s%s answers %d: %s", c.Base, path, status, e.Error)
		}
		return fmt.Errorf("%s%s answers %d", c.Base, path, status)
	}
	return json.Unmarshal(answer, out)
}
