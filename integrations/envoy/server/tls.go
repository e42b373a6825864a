package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// FileTLS returns a configuration with the certificate and the key of two files in PEM. They are read again for the next connection
// after either has changed; if the new ones do not fit, the old ones stay, because files are replaced one after the other.
func FileTLS(certFile, keyFile string, log zerolog.Logger) (*tls.Config, error) {
	f := &certFiles{cert: certFile, key: keyFile, log: log}
	stamp, err := f.stampNow()
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %q with key %q: %w", certFile, keyFile, err)
	}
	f.stamp, f.pair = stamp, &pair
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.get}, nil
}

// certFiles is a certificate that follows its files.
type certFiles struct {
	cert, key string
	log       zerolog.Logger

	mu    sync.Mutex
	stamp string // of the files when they were last read
	pair  *tls.Certificate
}

// stampNow returns what changes when a file does.
func (f *certFiles) stampNow() (string, error) {
	stamp := ""
	for _, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		stamp += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
	}
	return stamp, nil
}

func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamp, err := f.stampNow()
	if err != nil || stamp == f.stamp {
		return f.pair, nil
	}
	f.stamp = stamp
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		f.log.Warn().Err(err).Str("cert", f.cert).Str("key", f.key).
			Msg("the new certificate cannot be used; the old one stays until the files change again")
		return f.pair, nil
	}
	f.pair = &pair
	f.log.Info().Str("cert", f.cert).Msg("certificate read again")
	return f.pair, nil
}

// SelfSignedTLS returns a configuration with a certificate made now, for gateways that encrypt but do not verify. It lasts ten years,
// so that it never ends before the process does.
func SelfSignedTLS() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "conductor-picker"},
		DNSNames:     []string{"conductor-picker", "localhost"},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}, nil
}
