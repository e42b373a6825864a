package access

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Fault is a mistake in one of the files that ClientFiles or ServerFiles name.
type Fault struct {
	Field string // the setting that names the file: cert, key, cacert, client_ca, require_client_cert or token_file
	Err   error
	Joint bool // the mistake is in how several settings fit together, not in this file alone
}

// errPair is the error for a certificate without a key, or a key without a certificate.
var errPair = errors.New("cert and key belong together: set both, or neither")

// checkPair reads a certificate and its key. It returns a fault for each file that cannot be read, or one fault if the two do not
// belong together.
func checkPair(cert, key string) (faults []Fault) {
	switch {
	case cert == "" && key == "":
		return nil
	case key == "":
		return []Fault{{"cert", errPair, true}}
	case cert == "":
		return []Fault{{"key", errPair, true}}
	}
	read := func(field, path string) []byte {
		text, err := readWatched(path)
		if err != nil {
			faults = append(faults, Fault{field, err, false})
		}
		return text
	}
	both := [2][]byte{read("cert", cert), read("key", key)}
	if len(faults) > 0 {
		return faults
	}
	if _, err := tls.X509KeyPair(both[0], both[1]); err != nil {
		faults = append(faults, Fault{"cert", err, false})
	}
	return faults
}

// Check returns all faults of the files of a server. LoadCertificates stops at the first one.
func (f *ServerFiles) Check() []Fault {
	faults := checkPair(f.Cert, f.Key)
	if f.ClientCA != "" {
		text, err := readWatched(f.ClientCA)
		if err == nil {
			_, err = parseAuthorities(f.ClientCA, text)
		}
		if err != nil {
			faults = append(faults, Fault{"client_ca", err, false})
		}
		if f.Cert == "" && f.Key == "" {
			faults = append(faults, Fault{"client_ca",
				errors.New("only a listener with TLS sees certificates of clients: set cert and key"), true})
		}
	}
	if f.RequireClientCert && f.ClientCA == "" {
		faults = append(faults, Fault{"require_client_cert", errors.New("no authority is named: set client_ca"), true})
	}
	return faults
}

// Check returns all faults of the files of a client. NewTransport stops at the first one.
func (f *ClientFiles) Check() []Fault {
	faults := checkPair(f.Cert, f.Key)
	if f.CACert != "" {
		if _, err := Authorities(f.CACert); err != nil {
			faults = append(faults, Fault{"cacert", err, false})
		}
	}
	if f.TokenFile != "" {
		text, err := os.ReadFile(f.TokenFile)
		if err == nil && len(strings.Fields(string(text))) == 0 {
			err = fmt.Errorf("%s: the file is empty", f.TokenFile)
		}
		if err != nil {
			faults = append(faults, Fault{"token_file", err, false})
		}
	}
	return faults
}
