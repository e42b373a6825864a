// Package scope names where a block belongs:
//
//	Deployment   tenant, model, block size    a query names it
//	Variant      adapter, salt                hashed into the blocks of one deployment
//	Context      both                         one index
//
// The values are comparable. Every room of the application uses them.
package scope

import (
	"strings"

	"kvconductor/events"
)

// Deployment is everything of one tenant, model and block size.
type Deployment struct {
	Tenant    string
	Model     string
	BlockSize int // tokens
}

// Variant tells the contexts of one deployment apart.
type Variant struct {
	Lora string // name of the adapter, "" for the base model
	Salt string
}

// Context names one index.
type Context struct {
	Deployment Deployment
	Variant    Variant
}

// UnnamedPrefix begins the name of an adapter that has a number alone.
const UnnamedPrefix = "lora_id:"

// Unnamed reports whether an adapter has a number alone.
func Unnamed(lora string) bool { return strings.HasPrefix(lora, UnnamedPrefix) }

// Group is an attention group of a deployment.
type Group struct {
	Deployment Deployment
	Index      int
}

// Less orders variants by adapter, then salt.
func (v Variant) Less(other Variant) bool {
	return v.Lora < other.Lora || v.Lora == other.Lora && v.Salt < other.Salt
}

// Compare orders contexts by deployment, then by adapter and salt.
func (c *Context) Compare(other *Context) int {
	a, b := &c.Deployment, &other.Deployment
	for _, n := range [...]int{
		strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Model, b.Model), a.BlockSize - b.BlockSize,
		strings.Compare(c.Variant.Lora, other.Variant.Lora), strings.Compare(c.Variant.Salt, other.Variant.Salt),
	} {
		if n != 0 {
			return n
		}
	}
	return 0
}

// Agrees reports whether an optional name is absent or equal.
func Agrees(want *string, have string) bool { return want == nil || *want == have }

// Within reports whether a removed or cleared event is about the context: no field of
// its envelope contradicts the context.
func (c *Context) Within(e *events.Event) bool {
	return Agrees(e.Tenant, c.Deployment.Tenant) && Agrees(e.Model, c.Deployment.Model) &&
		Agrees(e.LoraName, c.Variant.Lora) && Agrees(e.Salt, c.Variant.Salt) &&
		(!e.Envelope || e.BlockSize == 0 || e.BlockSize == c.Deployment.BlockSize)
}

// Named returns the context that an event names. The context is that of the source's
// registration, and gives every field that the event leaves out.
func (c Context) Named(e *events.Event) Context {
	c.Deployment = c.Deployment.Named(e)
	if e.LoraName != nil {
		c.Variant.Lora = *e.LoraName
	}
	if e.Salt != nil {
		c.Variant.Salt = *e.Salt
	}
	return c
}

// Named returns the deployment that an event names. A standardized envelope wins over the
// registration, whose deployment d is.
func (d Deployment) Named(e *events.Event) Deployment {
	if e.Tenant != nil && *e.Tenant != "" {
		d.Tenant = *e.Tenant
	}
	if e.Model != nil && *e.Model != "" {
		d.Model = *e.Model
	}
	if e.Envelope && e.BlockSize > 0 {
		d.BlockSize = e.BlockSize
	}
	return d
}
