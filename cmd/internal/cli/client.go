package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/conductor/conductor/access"
	"example.com/conductor/config"
	"example.com/conductor/internal/request"
)

// Client asks a running server on behalf of a command.
type Client struct {
	Base  string // URL of the listener
	http  *http.Client
	token string // the file of the token that requests show, "" for none
}

// NewClient returns a client of the server at a base URL. It sends requests through web; if that is
// nil, without credentials.
func NewClient(base string, web *http.Client) *Client {
	if web == nil {
		web = &http.Client{Timeout: answerTimeout, CheckRedirect: KeepRedirect}
	}
	return &Client{Base: strings.TrimRight(base, "/"), http: web}
}

// answerTimeout is how long commands wait for an answer that is not a stream.
const answerTimeout = 30 * time.Second

// defaultServer is where a server with default settings listens.
const defaultServer = "http://127.0.0.1:" + defaultPort

// ClientFlags holds the flags of commands that ask a server.
type ClientFlags struct {
	Server string // as the user wrote it
	Files  access.ClientFiles
	AtOnce bool // a server that does not listen yet is an error, as probes need it; others wait for it

	cmd    *cobra.Command
	flag   *pflag.Flag // --server, nil without it
	starts *patience   // of all connections of the command, made with the first
}

// Add adds the flags to a command, --server only if named.
func (f *ClientFlags) Add(cmd *cobra.Command, named bool) {
	f.cmd = cmd
	flags := cmd.Flags()
	if named {
		flags.StringVar(&f.Server, "server", cmp.Or(os.Getenv(config.EnvServer), defaultServer),
			"`address` of the server: host:port, or the URL of a listener (also "+config.EnvServer+")")
		f.flag = flags.Lookup("server")
	}
	flags.StringVar(&f.Files.CACert, "cacert", "",
		"`file` of the authorities that sign the server's certificate, instead of those of the system")
	flags.StringVar(&f.Files.Cert, "cert", "", "`file` of the certificate to show")
	flags.StringVar(&f.Files.Key, "key", "", "`file` of the key of that certificate")
	flags.StringVar(&f.Files.TokenFile, "token-file", os.Getenv(config.EnvTokenFile),
		"`file` of the token to send (also "+config.EnvTokenFile+")")
}

// Named reports whether the user names a server, by the flag or in the environment.
func (f *ClientFlags) Named() bool { return f.flag.Changed || os.Getenv(config.EnvServer) != "" }

// BaseOf returns the base URL of a server that the user wrote as text. Without a scheme it is https if
// flags are given that only TLS needs, or a token for a server that is not on this machine, because everybody
// on the way could read the token. To send it in the clear all the same, write http://.
func (f *ClientFlags) BaseOf(text string) (string, error) {
	base, err := BaseURL(text, f.Files.CACert != "" || f.Files.Cert != "")
	if err == nil && f.Files.TokenFile != "" && !strings.Contains(text, "://") && !request.IsLoopback(base) {
		return BaseURL(text, true)
	}
	return base, err
}

// Base returns the base URL of the server of --server.
func (f *ClientFlags) Base() (string, error) {
	base, err := f.BaseOf(f.Server)
	if err == nil {
		return base, nil
	}
	if f.flag != nil && !f.flag.Changed && os.Getenv(config.EnvServer) != "" {
		return "", Usagef("%s: %w", config.EnvServer, err)
	}
	return "", Usagef("--server: %w", err)
}

// HTTP returns an HTTP client with the credentials of the flags. It follows no redirects, because the
// token is only for the server that the user named.
func (f *ClientFlags) HTTP(timeout time.Duration) (*http.Client, error) {
	to, err := f.Transport(http.DefaultTransport.(*http.Transport).Clone())
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: to, Timeout: timeout, CheckRedirect: KeepRedirect}, nil
}

// Transport returns a transport with the credentials of the flags, made of base. Its first connection waits for a server that
// does not listen yet, unless AtOnce is set.
func (f *ClientFlags) Transport(base *http.Transport) (http.RoundTripper, error) {
	if (f.Files.Cert == "") != (f.Files.Key == "") {
		return nil, Usagef("--cert and --key belong together")
	}
	if !f.AtOnce {
		if f.starts == nil {
			var err error
			if f.starts, err = newPatience(f.cmd.Root().Name(), f.cmd.ErrOrStderr); err != nil {
				return nil, err
			}
		}
		base.DialContext = f.starts.waitingDial(base.DialContext)
	}
	to, err := access.NewTransport(f.Files, base)
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) {
		return nil, fmt.Errorf("%s: %w", f.namedBy(wrong.Path), err)
	}
	return to, err
}

// namedBy returns the flag or the variable that names a file.
func (f *ClientFlags) namedBy(path string) string {
	switch path {
	case f.Files.CACert:
		return "--cacert"
	case f.Files.Cert:
		return "--cert"
	case f.Files.Key:
		return "--key"
	}
	if f.cmd.Flags().Changed("token-file") {
		return "--token-file"
	}
	return config.EnvTokenFile
}

// KeepRedirect is for the CheckRedirect of a client that takes a redirect for the answer.
func KeepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Client returns a client of the server of --server.
func (f *ClientFlags) Client() (*Client, error) {
	base, err := f.Base()
	if err != nil {
		return nil, err
	}
	return f.ClientOf(base, answerTimeout)
}

// ClientOf returns a client of the server at a base URL. timeout bounds a request with its answer; 0 is no
// bound, for answers that are read as they come.
func (f *ClientFlags) ClientOf(base string, timeout time.Duration) (*Client, error) {
	web, err := f.HTTP(timeout)
	if err != nil {
		return nil, err
	}
	c := NewClient(base, web)
	c.token = f.Files.TokenFile
	return c, nil
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

// Ask makes a request, in JSON if it has a body, and returns the status and the body of the answer. The
// error says in one sentence why there is none.
func (c *Client) Ask(ctx context.Context, method, path string, body []byte) (status int, answer []byte, err error) {
	status, answer, err = request.Do(ctx, c.http, method, c.Base+path, body)
	return status, answer, request.Explain(c.Base, err)
}

// Do makes a request and decodes the answer into out. Every status but 200 is a *RefusedError.
func (c *Client) Do(ctx context.Context, method, path string, body []byte, out any) error {
	status, answer, err := c.Ask(ctx, method, path, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return c.Refused(path, status, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the answer of %s%s cannot be read: %w", c.Base, path, err)
	}
	return nil
}

// Stream returns the body of the answer of GET path, of a media type unless that is "", as it comes. The
// caller closes it.
func (c *Client) Stream(ctx context.Context, path, accept string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, request.Explain(c.Base, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status says enough without it
		return nil, c.Refused(path, resp.StatusCode, text)
	}
	return resp.Body, nil
}

// maxRefusal is how many bytes of a refusal are read.
const maxRefusal = 64 << 10

// RefusedError is an answer that is not 200.
type RefusedError struct {
	Status int
	Body   []byte
	text   string
}

func (e *RefusedError) Error() string { return e.text }

// Said returns the server's own sentence, "" if the answer has none.
func (e *RefusedError) Said() string {
	var said struct{ Error string }
	json.Unmarshal(e.Body, &said) // the fields of a body that is not JSON stay empty
	return said.Error
}

// Refused words an answer that is not 200.
func (c *Client) Refused(path string, status int, body []byte) error {
	refusal := &RefusedError{Status: status, Body: body}
	said := refusal.Said()
	at := strings.TrimPrefix(strings.TrimPrefix(c.Base, "http://"), "https://")
	path, _, _ = strings.Cut(path, "?") // what commands ask for there says nothing to users
	text := fmt.Sprintf("%s%s answers %d", c.Base, path, status)
	switch {
	case status == http.StatusBadRequest && strings.Contains(string(body), "HTTP request to an HTTPS server"):
		text = fmt.Sprintf("%s speaks TLS: name it as https://%s", at, at)
	case status == http.StatusUnauthorized && c.token == "":
		text = fmt.Sprintf("%s answers only clients that it knows: send a token with --token-file, or show a certificate with --cert "+
			"and --key", at)
	case status == http.StatusUnauthorized:
		text = fmt.Sprintf("%s does not accept the token in %s: %s", at, c.token, cmp.Or(said, "it answers 401"))
	case status == http.StatusForbidden && c.token == "":
		text = fmt.Sprintf("%s refuses: %s; send the token of a client that may with --token-file", at, cmp.Or(said, "it answers 403"))
	case status == http.StatusForbidden:
		text = fmt.Sprintf("%s refuses: %s; the client of the token in %s may not", at, cmp.Or(said, "it answers 403"), c.token)
	case said != "":
		text += ": " + said
	case status == http.StatusNotFound:
		text += ": check that a Conductor of this version listens there"
	}
	refusal.text = text
	return refusal
}
