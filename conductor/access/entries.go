package access

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/spelling"
	"example.com/conductor/yamlfile"
)

// The keys of a file of credentials and of its entries.
var (
	listKeys  = []string{"tokens", "certificates"}
	entryKeys = []string{"name", "sha256", "subject", "roles", "tenants", "weight"}
)

// A credentialsReader reads the entries of a file of credentials and goes on after a mistake, so that all are reported.
type credentialsReader struct {
	file    *yamlfile.File
	out     *Credentials    // the entries so far
	names   map[string]bool // of all entries so far
	weights map[string]int  // by tenant, of the clients that have no other
}

// readLists reads the map at the top of the file.
func (r *credentialsReader) readLists(root *yaml.Node) {
	lists := r.readMap(root, "", listKeys)
	if lists == nil {
		return
	}
	tokens, _ := r.file.Elements(lists["tokens"], "tokens")
	for i, n := range tokens {
		if r.file.Full() {
			return
		}
		r.readToken(r.beginEntry(n, fmt.Sprintf("tokens[%d]", i)))
	}
	certificates, _ := r.file.Elements(lists["certificates"], "certificates")
	for i, n := range certificates {
		if r.file.Full() {
			return
		}
		r.readCertificate(r.beginEntry(n, fmt.Sprintf("certificates[%d]", i)))
	}
}

// makesEntry ends messages to those who lack the digest of a token.
const makesEntry = "; conductor token makes an entry"

// absent is the value of a key that is not given.
var absent = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}

// readMap returns the values of the map at path, which has all keys that are known: absent where one is not given. It returns
// nil if there is no map.
func (r *credentialsReader) readMap(n *yaml.Node, path string, known []string) map[string]*yaml.Node {
	pairs, ok := r.file.Pairs(n, path)
	if !ok {
		return nil
	}
	values := make(map[string]*yaml.Node, len(known))
	for _, key := range known {
		values[key] = absent
	}
	for _, p := range pairs {
		if values[p.Name] == nil {
			hint := spelling.DidYouMean(p.Name, known)
			if p.Name == "token" && path != "" {
				hint = "; write its sha256" + makesEntry
			}
			r.file.AddUnknownKey(p, path, hint)
			continue
		}
		values[p.Name] = p.Value
	}
	return values
}

// An entry is one client in a file of credentials.
type entry struct {
	*credentialsReader
	path   string // such as tokens[2]
	node   *yaml.Node
	values map[string]*yaml.Node // by key, as readMap returns them
}

// beginEntry returns the entry that stands at path, nil if it is no map.
func (r *credentialsReader) beginEntry(n *yaml.Node, path string) *entry {
	values := r.readMap(n, path, entryKeys)
	if values == nil {
		return nil
	}
	return &entry{r, path, n, values}
}

// refuse reports a mistake in the value of a key, or that the entry lacks the key.
func (e *entry) refuse(key, format string, args ...any) {
	at := e.values[key]
	if at == absent {
		at = e.node
	}
	e.file.AddProblem(at, yamlfile.JoinPath(e.path, key), format, args...)
}

// maxShown is how many bytes of a value errors show: fewer than a token has.
const maxShown = 32

// shownValue returns a value in quotes between noun and a space. It returns "" if the value may be a token, because people put
// tokens into wrong places: the place in the file has to say then which value is meant.
func shownValue(noun, value string) string {
	if len(value) > maxShown || strings.HasPrefix(value, TokenPrefix) {
		return ""
	}
	return fmt.Sprintf("%s%q ", noun, value)
}

// readToken reads an entry of tokens. e may be nil.
func (r *credentialsReader) readToken(e *entry) {
	if e == nil {
		return
	}
	if !yamlfile.IsNull(e.values["subject"]) {
		e.refuse("subject", "only entries of certificates have one")
	}
	digest, ok := e.readDigest()
	client := e.readClient()
	if ok {
		at := maphash.Bytes(r.out.seed, digest[:])
		r.out.found[at] = append(r.out.found[at], len(r.out.tokens))
		r.out.tokens = append(r.out.tokens, token{digest, client})
	}
}

// readDigest reads the digest of a token. It returns false if it has reported a mistake.
func (e *entry) readDigest() (digest [sha256.Size]byte, ok bool) {
	text, ok := e.readText("sha256")
	if !ok {
		return digest, false
	}
	if text == "" {
		e.refuse("sha256", "is required"+makesEntry)
		return digest, false
	}
	bytes, err := hex.DecodeString(text)
	if err != nil || len(bytes) != sha256.Size {
		e.refuse("sha256", "must be 64 hexadecimal digits, the SHA-256 of a token"+makesEntry)
		return digest, false
	}
	digest = [sha256.Size]byte(bytes)
	if e.out.hasDigest(digest) {
		e.refuse("sha256", "another entry has the same token")
		return digest, false
	}
	return digest, true
}

// readCertificate reads an entry of certificates. e may be nil.
func (r *credentialsReader) readCertificate(e *entry) {
	if e == nil {
		return
	}
	if !yamlfile.IsNull(e.values["sha256"]) {
		e.refuse("sha256", "only entries of tokens have one")
	}
	client := e.readClient()
	subject, ok := e.readText("subject")
	switch {
	case !ok:
	case subject == "":
		e.refuse("subject", "is required: a name in the certificate")
	case r.out.certificates[subject] != nil:
		e.refuse("subject", "%sis taken by another entry", shownValue("", subject))
	default:
		r.out.certificates[subject] = client
	}
}

// readClient reads the fields that entries of tokens and of certificates share.
func (e *entry) readClient() *Client {
	c := new(Client)
	name, ok := e.readText("name")
	switch {
	case !ok:
	case name == "":
		e.refuse("name", "is required")
	case e.names[name]:
		e.refuse("name", "%sis taken by another entry", shownValue("", name))
	default:
		c.Name, e.names[name] = name, true
	}
	c.Roles, c.Tenants = e.readRoles(), e.readTenants()
	weight, weighed := e.readWeight()
	c.Weight = weight
	if len(c.Tenants) == 1 && weighed {
		own := max(c.Weight, 1) // 0 stands for 1
		other, known := e.weights[c.Tenants[0]]
		if e.weights[c.Tenants[0]] = own; known && other != own {
			e.refuse("weight", "%shas weight %d in another entry: give all its entries the same weight",
				cmp.Or(shownValue("tenant ", c.Tenants[0]), "the tenant "), other)
		}
	}
	return c
}

func (e *entry) readRoles() (all Roles) {
	names, ok := e.readTexts("roles", func(name string) error {
		role, err := ParseRoles([]string{name})
		if all |= role; err != nil {
			return fmt.Errorf("%sis no role; the roles are %s", shownValue("", name), strings.Join(roleNames, ", "))
		}
		return nil
	})
	if ok && len(names) == 0 {
		e.refuse("roles", "is required; the roles are %s", strings.Join(roleNames, ", "))
	}
	return all
}

// readTenants returns the tenants of the client, nil for every tenant.
func (e *entry) readTenants() scope.Tenants {
	names, ok := e.readTexts("tenants", func(name string) error {
		if name == "" {
			return errors.New("a tenant has no name")
		}
		return nil
	})
	every := slices.Contains(names, "*")
	switch {
	case ok && len(names) == 0:
		e.refuse("tenants", `is required; ["*"] is every tenant`)
	case every && len(names) > 1:
		e.refuse("tenants", `"*" is every tenant, and stands alone`)
	}
	if every {
		return nil
	}
	return names
}

// readWeight returns false if it has reported a mistake.
func (e *entry) readWeight() (weight int, ok bool) {
	n := e.values["weight"]
	switch {
	case yamlfile.IsNull(n):
	case n.ShortTag() != "!!int":
		e.refuse("weight", "must be a whole number, not %s", e.file.Describe(n))
		return 0, false
	case n.Decode(&weight) != nil || weight < 0 || weight > maxWeight:
		e.refuse("weight", "must be 1 to %d; leave it out for 1", maxWeight)
		return 0, false
	}
	return weight, true
}

// textTags are those of values that are read as text. Numbers are too, because a number may name a tenant.
var textTags = []string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp"}

// readText returns the text of a key, "" if it is not given. It reports any other value and returns false.
func (e *entry) readText(key string) (string, bool) {
	return e.asText(e.values[key], yamlfile.JoinPath(e.path, key))
}

func (e *entry) asText(n *yaml.Node, path string) (string, bool) {
	switch {
	case yamlfile.IsNull(n):
		return "", true
	case n.Kind != yaml.ScalarNode || !slices.Contains(textTags, n.ShortTag()):
		e.file.AddProblem(n, path, "must be text, not %s", e.file.Describe(n))
		return "", false
	}
	return n.Value, true
}

// readTexts returns the texts in the list of a key, none if it is not given. It reports any other value, and elements that are no
// text or that check refuses, and returns false then.
func (e *entry) readTexts(key string, check func(string) error) (texts []string, ok bool) {
	path := yamlfile.JoinPath(e.path, key)
	elements, ok := e.file.Elements(e.values[key], path)
	for i, n := range elements {
		if e.file.Full() {
			return nil, false
		}
		n, at := yamlfile.Resolve(n), fmt.Sprintf("%s[%d]", path, i)
		text, fits := e.asText(n, at)
		if fits {
			if err := check(text); err != nil {
				e.file.AddProblem(n, at, "%s", err)
				fits = false
			}
		}
		texts, ok = append(texts, text), ok && fits
	}
	return texts, ok
}
