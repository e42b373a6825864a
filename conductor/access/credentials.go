package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"fmt"
	"hash/maphash"
	"slices"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/yamlfile"
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

// maxWeight bounds the shares of one client.
const maxWeight = 1000

// maxFile bounds a file of credentials in bytes, some 50,000 tokens.
const maxFile = 16 << 20

// ParseCredentials reads the text of a file of credentials. The error has a line for each mistake, with its place in the file
// of that name, no place if the name is "", and the path of the field. No error holds a token.
func ParseCredentials(name string, text []byte) (*Credentials, error) {
	if len(text) > maxFile {
		return nil, yamlfile.Problem{Place: yamlfile.Place{Name: name}, Message: fmt.Sprintf("the file is larger than %d MiB", maxFile>>20)}
	}
	var problems []yamlfile.Problem
	file := &yamlfile.File{Name: name, Secrets: true, Report: func(p yamlfile.Problem) { problems = append(problems, p) }}
	file.ParseYAML(text)
	if file.Root == nil || yamlfile.IsNull(file.Root) { // perhaps its writer has only just begun
		if len(problems) == 0 {
			file.AddProblem(&yaml.Node{}, "", "the file is empty: write tokens: [] if nobody is to have access")
		}
		return nil, yamlfile.Join(problems)
	}
	r := &credentialsReader{file: file, names: make(map[string]bool), weights: make(map[string]int),
		out: &Credentials{certificates: make(map[string]*Client), found: make(map[uint64][]int), seed: maphash.MakeSeed()}}
	r.readLists(file.Root)
	if len(problems) > 0 {
		return nil, yamlfile.Join(problems)
	}
	return r.out, nil
}

// TokenPrefix is how tokens of conductor token begin. It lets scanners of leaked secrets find them.
const TokenPrefix = "kvc_"

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
