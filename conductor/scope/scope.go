// Package scope names where a block belongs:
//
//	Deployment   tenant, model, block size    a query names it
//	Variant      adapter, salt                hashed into the blocks of one deployment
//	Context      both                         the root of chains in the deployment's index
//
// The values are comparable. Every room of the application uses them.
package scope

import (
	"cmp"
	"strings"

	"example.com/conductor/events"
)

// Deployment is everything of one tenant, model and block size.
type Deployment struct {
	Tenant    string
	Model     string
	BlockSize int // tokens
}

// Variant is an adapter and a salt. Blocks of different variants never match each other's prompts.
type Variant struct {
	Lora string // name of the adapter, "" for the base model
	Salt string
}

// Context names the blocks that one prompt may match.
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

// Compare orders variants by adapter, then salt.
func (v Variant) Compare(other Variant) int {
	return cmp.Or(strings.Compare(v.Lora, other.Lora), strings.Compare(v.Salt, other.Salt))
}

// Compare orders deployments by tenant, model and block size.
func (d Deployment) Compare(other Deployment) int {
	return cmp.Or(strings.Compare(d.Tenant, other.Tenant), strings.Compare(d.Model, other.Model), cmp.Compare(d.BlockSize, other.BlockSize))
}

// Agrees reports whether an optional name is absent or equal.
func Agrees(want *string, have string) bool { return want == nil || *want == have }

// Within reports whether a removed or cleared event is about the deployment: no field of its
// envelope contradicts that.
func (d Deployment) Within(e *events.Event) bool {
	return Agrees(e.Tenant, d.Tenant) && Agrees(e.Model, d.Model) && (!e.Envelope || e.BlockSize == 0 || e.BlockSize == d.BlockSize)
}

// Within reports whether a removed or cleared event is about the adapter and salt.
func (v Variant) Within(e *events.Event) bool {
	return Agrees(e.LoraName, v.Lora) && Agrees(e.Salt, v.Salt)
}

// Within reports whether a removed or cleared event is about the context.
func (c Context) Within(e *events.Event) bool { return c.Deployment.Within(e) && c.Variant.Within(e) }

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

// DefaultTenant is the tenant of registrations and queries that name none.
const DefaultTenant = "default"
