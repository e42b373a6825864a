package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Succeed(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	must.Succeed(t, err)
	a.cert, err = x509.ParseCertificate(der)
	must.Succeed(t, err)
	a.file = filepath.Join(a.dir, "ca.pem")
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	must.Succeed(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue writes a certificate with its key, and returns the files.
func (a *authority) issue(name string, serial int64, ends time.Time) (cert, key string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: ends.Add(-2 * time.Hour), NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "fleet", Path: "/" + name}},
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Succeed(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	must.Succeed(a.t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	must.Succeed(a.t, err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(a.t, key, "PRIVATE KEY", text)
	writePEM(a.t, cert, "CERTIFICATE", der)
	return cert, key
}

// client returns a client that trusts the authority, with a certificate unless cert is "".
func (a *authority) client(cert, key string) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	cfg := &tls.Config{RootCAs: pool}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		must.Succeed(a.t, err)
		// Also if the server asks for a certificate of another authority.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true, DisableKeepAlives: true},
		Timeout: 2 * time.Minute}
}

// requestStatus returns the status of GET /services, 0 if there is no answer.
func requestStatus(c *http.Client, url string) (int, *x509.Certificate) {
	resp, err := c.Get(url + "/services")
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.TLS.PeerCertificates[0]
}

// tlsProcess starts a server with TLS and certificates of clients.
func tlsProcess(t *testing.T, ca *authority, more string) (p *process, cert, key string) {
	cert, key = ca.issue("server", 10, time.Now().Add(time.Hour))
	p = serveProcess(t, fmt.Sprintf("tls: {cert: %s, key: %s, client_ca: %s}\n", cert, key, ca.file)+more)
	p.url = strings.Replace(p.url, "http:", "https:", 1)
	return p, cert, key
}

func certificateEntries(t *testing.T, lines ...string) string {
	file := filepath.Join(t.TempDir(), "credentials.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("certificates:\n"+strings.Join(lines, "\n")+"\n"), 0o600))
	return file
}

// TestClientCertificates shows certificates that are known, unknown, expired, and of another
// authority.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ours"), newAuthority(t, "theirs")
	file := certificateEntries(t, "  - {name: router, subject: spiffe://fleet/router, roles: [query], tenants: ['*']}",
		"  - {name: late, subject: late, roles: [query], tenants: ['*']}")
	p, _, _ := tlsProcess(t, ca, "auth: {file: "+file+"}\n")
	hour := time.Now().Add(time.Hour)
	show := func(from *authority, name string, ends time.Time) int {
		cert, key := from.issue(name, 20, ends)
		got, _ := requestStatus(ca.client(cert, key), p.url)
		return got
	}
	if got := show(ca, "router", hour); got != 200 {
		t.Errorf("a known certificate: %d", got)
	}
	if got := show(ca, "stranger", hour); got != 401 {
		t.Errorf("an unknown certificate: %d", got)
	}
	if got := show(ca, "late", time.Now().Add(-time.Minute)); got != 0 {
		t.Errorf("an expired certificate: %d", got)
	}
	if got := show(other, "router", hour); got != 0 {
		t.Errorf("a certificate of another authority: %d", got)
	}
	if got, _ := requestStatus(ca.client("", ""), p.url); got != 401 {
		t.Errorf("no certificate: %d", got)
	}
	if resp, err := http.Get(strings.Replace(p.url, "https:", "http:", 1) + "/health"); err == nil && resp.StatusCode != 400 {
		t.Errorf("a request without TLS: %d", resp.StatusCode)
	}

	cert, key := ca.issue("strict", 12, hour)
	strict := serveProcess(t, fmt.Sprintf("tls: {cert: %s, key: %s, client_ca: %s, require_client_cert: true}\n", cert, key, ca.file))
	strict.url = strings.Replace(strict.url, "http:", "https:", 1)
	if got, _ := requestStatus(ca.client("", ""), strict.url); got != 0 {
		t.Errorf("no certificate where one is required: %d", got)
	}
	if got, _ := requestStatus(ca.client(cert, key), strict.url); got != 200 {
		t.Errorf("a certificate where one is required: %d", got)
	}
}

// TestCertificateIsReplaced swaps the server's certificate while clients ask.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	p, cert, key := tlsProcess(t, ca, "")
	var failures, asked atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			c := ca.client("", "")
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, _ := requestStatus(c, p.url); got != 200 {
					failures.Add(1)
				}
				asked.Add(1)
			}
		})
	}
	must.Succeed(t, os.WriteFile(cert, []byte("broken"), 0o600))
	eventually(t, "the broken file is not in the log", func() (string, bool) {
		log := p.log()
		return log, strings.Contains(log, "not replaced")
	})
	next, nextKey := ca.issue("next", 11, time.Now().Add(time.Hour))
	for from, to := range map[string]string{next: cert, nextKey: key} {
		must.Succeed(t, os.Rename(from, to))
	}
	eventually(t, "the new certificate is not shown", func() (string, bool) {
		_, seen := requestStatus(ca.client("", ""), p.url)
		return p.log(), seen != nil && seen.SerialNumber.Int64() == 11
	})
	close(stop)
	load.Wait()
	if failures.Load() > 0 || asked.Load() == 0 {
		t.Errorf("%d of %d requests failed", failures.Load(), asked.Load())
	}
}

// TestHalfOpenHandshakes opens connections that begin no handshake, more than the server takes.
// Clients that are connected are answered meanwhile, and new ones once the others are gone.
func TestHalfOpenHandshakes(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	p, _, _ := tlsProcess(t, ca, "# fixed: {connections: 600, readtimeout: 1s}\n")
	kept := ca.client("", "")
	kept.Transport.(*http.Transport).DisableKeepAlives = false
	eventually(t, "no client is connected", func() (string, bool) { // the handshake may take more than a second
		got, _ := requestStatus(kept, p.url)
		return fmt.Sprint(got), got == 200
	})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range 10_000 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "https://"))
		must.Succeed(t, err)
		c.Write([]byte{0x16, 3, 1}) // the begin of a client hello
		if open = append(open, c); len(open) > 1500 {
			open[0].Close()
			open = open[1:]
		}
	}
	if got, _ := requestStatus(kept, p.url); got != 200 {
		t.Errorf("a client that is connected: %d", got)
	}
	eventually(t, "half-open connections stay", func() (string, bool) {
		got, _ := requestStatus(ca.client("", ""), p.url)
		return fmt.Sprint(got), got == 200
	})
}

// TestCommandsOverTLS runs commands and a replica against a server that wants TLS and tokens.
func TestCommandsOverTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	engine := newRuledEngine(t, "e", 0)
	dir := t.TempDir()
	token := filepath.Join(dir, "t.token")
	entry, err := command("token", "--name", "peer", "--role", "peer", "--role", "query", "--out", token).Output()
	must.Succeed(t, err)
	secret, err := os.ReadFile(token)
	must.Succeed(t, err)
	if info, err := os.Stat(token); err != nil || info.Mode().Perm() != 0o600 ||
		strings.Contains(string(entry), strings.TrimSpace(string(secret))) {
		t.Errorf("the token's file: %v %v, its entry: %s", info.Mode(), err, entry)
	}
	file := filepath.Join(dir, "credentials.yaml")
	must.Succeed(t, os.WriteFile(file, append([]byte("tokens:\n"), entry...), 0o600))
	p, _, _ := tlsProcess(t, ca, "auth: {file: "+file+"}\nsources:\n  - {endpoint: 'tcp://"+engine.pub.Addr().String()+
		"', type: vLLM, modelname: m, instance_id: e, block_size: 16}\n")
	engine.publish(ruledStored(0, 4))
	services := func(flags ...string) (string, error) {
		out, err := command(append([]string{"services", "--server", p.url}, flags...)...).CombinedOutput()
		return string(out), err
	}
	eventually(t, "services does not show the engine", func() (string, bool) {
		out, err := services("--cacert", ca.file, "--token-file", token)
		return out, err == nil && strings.Contains(out, "synced")
	})
	if out, err := services("--cacert", ca.file); err == nil || !strings.Contains(out, "answers only clients that it knows") {
		t.Errorf("without the token: %s", out)
	}
	if out, err := services("--token-file", token); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("without the authority: %s", out)
	}
	if out, err := services("--token-file", filepath.Join(dir, "missing")); err == nil || !strings.Contains(out, "missing") {
		t.Errorf("with a missing file: %s", out)
	}
	follower := serveProcess(t, fmt.Sprintf("dynamo: {peers: ['%s']}\npeer: {cacert: %s, token_file: %s}\n", p.url, ca.file, token))
	eventually(t, "the replica has no blocks", func() (string, bool) {
		_, answer := get(follower.url + "/services")
		return answer + follower.log(), strings.Contains(answer, `"Blocks":4`)
	})
	out, err := command("diff", p.url, p.url, "--cacert", ca.file, "--token-file", token).CombinedOutput()
	if err != nil {
		t.Errorf("diff: %s", out)
	}
}
