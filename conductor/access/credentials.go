package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/conductor/scope"
)

// Credentials are the clients that a server knows. A file of them reads:
//
//	tokens:
//	  - name: router-a
//	    sha256: 64 hexadecimal digits, the SHA-256 of the token
//	    roles: [query]
//	    tenants: [acme]
//	    weight: 2 # optional; shares of the slots for queries
//	certificates:
//	  - name: engines
//	    subject: engines.acme.example
//	    roles: [register]
//	    tenants: ["*"]
//
// subject is the common name, or a DNS name or URI, of a client certificate that the server's
// certificate authority has signed.
type Credentials struct {
	tokens       []token
	found        map[uint64][]int // by hash of the digest under seed -> positions in tokens
	seed         maphash.Seed
	certificates map[string]*Client // by subject
}

type token struct {
	digest [sha256.Size]byte
	client *Client
}

// entry is one client in a file.
type entry struct {
	Name    string   `yaml:"name"`
	SHA256  string   `yaml:"sha256"`
	Subject string   `yaml:"subject"`
	Roles   []string `yaml:"roles"`
	Tenants []string `yaml:"tenants"`
	Weight  int      `yaml:"weight"`
}

// maxWeight bounds the shares of one client.
const maxWeight = 1000

// maxFile bounds a file of credentials in bytes, some 50,000 tokens.
const maxFile = 16 << 20

// readCredentials reads a file of credentials. It returns all mistakes, each with the entry and
// the field. No error holds a token.
func readCredentials(r io.Reader) (*Credentials, error) {
	var in struct {
		Tokens       []entry `yaml:"tokens"`
		Certificates []entry `yaml:"certificates"`
	}
	d := yaml.NewDecoder(io.LimitReader(r, maxFile))
	d.KnownFields(true)
	switch err := d.Decode(&in); {
	case err == io.EOF: // perhaps its writer has only just begun
		return nil, errors.New("it is empty: write tokens: [] if nobody is to have access")
	case err != nil:
		return nil, err
	}
	out := &Credentials{certificates: make(map[string]*Client), found: make(map[uint64][]int), seed: maphash.MakeSeed()}
	var errs []error
	names, weights := make(map[string]bool), make(map[string]int)
	// add returns the client of an entry, nil if something is wrong with it: own is what is wrong besides what both lists share.
	add := func(list string, i int, e entry, own error) *Client {
		c, wrong := e.makeClient()
		if own != nil {
			wrong = append([]error{own}, wrong...)
		}
		if e.Name != "" && names[e.Name] {
			wrong = append(wrong, fmt.Errorf("name: %q is taken by another entry", e.Name))
		}
		names[e.Name] = true
		if c != nil && len(c.Tenants) == 1 {
			other, known := weights[c.Tenants[0]]
			if weights[c.Tenants[0]] = c.Weight; known && other != c.Weight {
				wrong = append(wrong, fmt.Errorf("weight: %d, and %d in another entry of tenant %q: its clients share slots", c.Weight,
					other, c.Tenants[0]))
			}
		}
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("%s[%d]: %w", list, i, err))
		}
		if len(wrong) > 0 {
			return nil
		}
		return c
	}
	for i, e := range in.Tokens {
		digest, err := hex.DecodeString(e.SHA256)
		switch {
		case err != nil || len(digest) != sha256.Size:
			err = errors.New("sha256: not 64 hexadecimal digits; make an entry with conductor token")
		case e.Subject != "":
			err = errors.New("subject: only entries of certificates have one")
		case out.hasDigest([sha256.Size]byte(digest)):
			err = errors.New("sha256: another entry has the same token")
		}
		if c := add("tokens", i, e, err); c != nil {
			at := maphash.Bytes(out.seed, digest)
			out.found[at] = append(out.found[at], len(out.tokens))
			out.tokens = append(out.tokens, token{[sha256.Size]byte(digest), c})
		}
	}
	for i, e := range in.Certificates {
		var err error
		switch {
		case e.Subject == "":
			err = errors.New("subject: is required")
		case e.SHA256 != "":
			err = errors.New("sha256: only entries of tokens have one")
		case out.certificates[e.Subject] != nil:
			err = fmt.Errorf("subject: %q is taken by another entry", e.Subject)
		}
		if c := add("certificates", i, e, err); c != nil {
			out.certificates[e.Subject] = c
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// makeClient checks the fields that entries of tokens and of certificates share, and returns the client that they describe.
func (e *entry) makeClient() (*Client, []error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if e.Weight < 0 || e.Weight > maxWeight {
		wrong("weight: %d is not between 1 and %d, or 0 for 1", e.Weight, maxWeight)
	}
	if e.Name == "" {
		wrong("name: is required")
	}
	roles, err := ParseRoles(e.Roles)
	switch {
	case err != nil:
		wrong("roles: %w", err)
	case roles == 0:
		wrong("roles: is required; the roles are %s", strings.Join(roleNames, ", "))
	}
	every := slices.Contains(e.Tenants, "*")
	switch {
	case len(e.Tenants) == 0:
		wrong(`tenants: is required; ["*"] is every tenant`)
	case slices.Contains(e.Tenants, ""):
		wrong("tenants: a tenant has no name")
	case every && len(e.Tenants) > 1:
		wrong(`tenants: "*" is every tenant, and stands alone`)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	c := &Client{Name: e.Name, Roles: roles, Weight: e.Weight}
	if !every {
		c.Tenants = scope.Tenants(e.Tenants)
	}
	return c, nil
}

// maxToken bounds a token in bytes, so that a wrong one costs little to hash. Those of conductor token
// have 47.
const maxToken = 16 << 10

// byToken returns the client of a token, nil if there is none. How long it takes says nothing about the entries: it looks
// for a hash under a random seed, and compares digests in constant time.
func (c *Credentials) byToken(text string) (client *Client) {
	if len(text) > maxToken {
		return nil
	}
	digest := sha256.Sum256([]byte(text))
	for _, i := range c.found[maphash.Bytes(c.seed, digest[:])] {
		if subtle.ConstantTimeCompare(c.tokens[i].digest[:], digest[:]) == 1 {
			client = c.tokens[i].client
		}
	}
	return client
}

// hasDigest reports whether an entry has a digest.
func (c *Credentials) hasDigest(digest [sha256.Size]byte) bool {
	return slices.ContainsFunc(c.found[maphash.Bytes(c.seed, digest[:])], func(i int) bool { return c.tokens[i].digest == digest })
}

// byCertificate returns the client of a verified certificate, nil if there is none.
func (c *Credentials) byCertificate(cert *x509.Certificate) *Client {
	for _, uri := range cert.URIs {
		if client := c.certificates[uri.String()]; client != nil {
			return client
		}
	}
	for _, name := range append(slices.Clone(cert.DNSNames), cert.Subject.CommonName) {
		if client := c.certificates[name]; client != nil {
			return client
		}
	}
	return nil
}
