package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ServerFiles are the files of a server's TLS.
type ServerFiles struct {
	Cert, Key string
	// ClientCA has the authorities that sign certificates of clients; "" asks for none.
	ClientCA string
	// RequireClientCert refuses connections without such a certificate.
	RequireClientCert bool
}

// Certificates are the TLS settings of a server. Reload reads the files again; connections that
// are open keep the settings they began with.
type Certificates struct {
	files   ServerFiles
	current atomic.Pointer[tls.Config]
	expires atomic.Int64 // of the server's certificate, in seconds since 1970
}

// LoadCertificates reads the files.
func LoadCertificates(files ServerFiles) (*Certificates, error) {
	c := &Certificates{files: files}
	return c, c.Reload()
}

// Reload reads the files again. If one is unusable, everything stays as it was.
func (c *Certificates) Reload() error {
	cert, err := readWatched(c.files.Cert)
	if err != nil {
		return err
	}
	key, err := readWatched(c.files.Key)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.files.ClientCA != "" {
		text, err := readWatched(c.files.ClientCA)
		if err != nil {
			return err
		}
		if cfg.ClientCAs, err = parseAuthorities(c.files.ClientCA, text); err != nil {
			return err
		}
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
		if c.files.RequireClientCert {
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	c.expires.Store(pair.Leaf.NotAfter.Unix())
	c.current.Store(cfg)
	return nil
}

// Paths returns the names of the files.
func (c *Certificates) Paths() []string { return []string{c.files.Cert, c.files.Key, c.files.ClientCA} }

// Config returns settings that follow Reload.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

// Expires returns when the certificate of the server ends.
func (c *Certificates) Expires() time.Time { return time.Unix(c.expires.Load(), 0) }

// Expiry is a collector of when the certificate ends.
func (c *Certificates) Expiry() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "conductor_certificate_expiry_seconds", Help: "Time at which the certificate of the listeners ends, in seconds since 1970.",
	}, func() float64 { return float64(c.expires.Load()) })
}

// Authorities reads a file of certificates of authorities.
func Authorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseAuthorities(path, text)
}

func parseAuthorities(path string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: there is no certificate in PEM form", path)
	}
	return pool, nil
}

// ClientFiles are what a client shows to servers. Each file may be "".
type ClientFiles struct {
	CACert    string // authorities of servers, instead of the system's
	Cert, Key string // the certificate of the client
	TokenFile string // its first line is sent as a bearer token
}

// Transport sends requests with what ClientFiles have. It reads files that have changed before
// the next request.
type Transport struct {
	files ClientFiles
	base  *http.Transport

	mu     sync.Mutex
	stamp  string              // guarded by mu
	now    *http.Transport     // guarded by mu
	tokens []string            // lines of TokenFile; guarded by mu
	trusts func(*url.URL) bool // guarded by mu
}

// NewTransport returns a Transport. base has all other settings. It returns the error of a file.
func NewTransport(files ClientFiles, base *http.Transport) (*Transport, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errPair
	}
	t := &Transport{files: files, base: base}
	_, _, err := t.readFiles()
	return t, err
}

// SendTokenTo lets the token go only to the URLs for which trusts returns true. Requests to others have none. Without it
// all get the token.
func (t *Transport) SendTokenTo(trusts func(*url.URL) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trusts = trusts
}

// Tokens returns the lines of TokenFile: the token that is sent, and behind it others that this client knows. While the file
// cannot be read they are those from before.
func (t *Transport) Tokens() []string {
	t.readFiles() // requests have its error
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tokens
}

// readFiles returns a transport and the tokens from the files as they are now.
func (t *Transport) readFiles() (*http.Transport, []string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &t.files
	stamp := Stamp(f.CACert, f.Cert, f.Key, f.TokenFile)
	if t.now != nil && stamp == t.stamp {
		return t.now, t.tokens, nil
	}
	shown, tokens := &tls.Config{MinVersion: tls.VersionTLS12}, []string(nil)
	var err error
	if f.CACert != "" {
		if shown.RootCAs, err = Authorities(f.CACert); err != nil {
			return nil, nil, err
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, nil, err
		}
		shown.Certificates = []tls.Certificate{pair}
	}
	if f.TokenFile != "" {
		text, err := os.ReadFile(f.TokenFile)
		if err != nil {
			return nil, nil, err
		}
		if tokens = strings.Fields(string(text)); len(tokens) == 0 {
			return nil, nil, fmt.Errorf("%s: the file is empty", f.TokenFile)
		}
	}
	if t.now != nil {
		t.now.CloseIdleConnections()
	}
	t.now, t.tokens, t.stamp = t.base.Clone(), tokens, stamp
	t.now.TLSClientConfig = shown
	return t.now, tokens, nil
}

// errRedirect refuses to ask whomever a server sends its clients to: the credentials are for that server alone.
var errRedirect = errors.New("the server redirects to another URL, which gets no credentials")

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, tokens, err := t.readFiles()
	if err == nil && r.Response != nil {
		err = errRedirect
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	t.mu.Lock()
	trusts := t.trusts
	t.mu.Unlock()
	if len(tokens) > 0 && (trusts == nil || trusts(r.URL)) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+tokens[0])
	}
	return to.RoundTrip(r)
}
