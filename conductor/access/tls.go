package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
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
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return err
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.files.ClientCA != "" {
		if cfg.ClientCAs, err = Authorities(c.files.ClientCA); err != nil {
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
	TokenFile string // sent as a bearer token
}

// Transport sends requests with what ClientFiles have. It reads files that have changed before
// the next request.
type Transport struct {
	files ClientFiles
	base  *http.Transport

	mu    sync.Mutex
	stamp string          // guarded by mu
	now   *http.Transport // guarded by mu
	token string          // guarded by mu
}

// NewTransport returns a Transport. base has all other settings. It returns the error of a file.
func NewTransport(files ClientFiles, base *http.Transport) (*Transport, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errors.New("a client certificate needs both its certificate and its key")
	}
	t := &Transport{files: files, base: base}
	_, _, err := t.readFiles()
	return t, err
}

// readFiles returns a transport and a token from the files as they are now.
func (t *Transport) readFiles() (*http.Transport, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &t.files
	stamp := Stamp(f.CACert, f.Cert, f.Key, f.TokenFile)
	if t.now != nil && stamp == t.stamp {
		return t.now, t.token, nil
	}
	shown, token := &tls.Config{MinVersion: tls.VersionTLS12}, ""
	var err error
	if f.CACert != "" {
		if shown.RootCAs, err = Authorities(f.CACert); err != nil {
			return nil, "", err
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, "", err
		}
		shown.Certificates = []tls.Certificate{pair}
	}
	if f.TokenFile != "" {
		text, err := os.ReadFile(f.TokenFile)
		if err != nil {
			return nil, "", err
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			return nil, "", fmt.Errorf("%s: the file is empty", f.TokenFile)
		}
	}
	if t.now != nil {
		t.now.CloseIdleConnections()
	}
	t.now, t.token, t.stamp = t.base.Clone(), token, stamp
	t.now.TLSClientConfig = shown
	return t.now, token, nil
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, token, err := t.readFiles()
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return to.RoundTrip(r)
}
