// Package datalayer declares what the plug-in uses of the router's package of this path.
package datalayer

import "github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"

// Cloneable is a value of an endpoint.
type Cloneable interface{ Clone() Cloneable }

// AttributeMap has the values of an endpoint.
type AttributeMap interface {
	Put(plugin.DataKey, Cloneable)
	Get(plugin.DataKey) (Cloneable, bool)
}

// EndpointMetadata says where an endpoint is.
type EndpointMetadata struct {
	Name, Address, Port string
	RankIndex           int
}

// Metrics are those of an endpoint.
type Metrics struct{}

// NewMetrics returns no metrics.
func NewMetrics() *Metrics { return &Metrics{} }

// Attributes is an AttributeMap.
type Attributes map[plugin.DataKey]Cloneable

// Put sets a value.
func (a Attributes) Put(key plugin.DataKey, value Cloneable) { a[key] = value }

// Get returns a value.
func (a Attributes) Get(key plugin.DataKey) (Cloneable, bool) {
	value, ok := a[key]
	return value, ok
}

// NewAttributes returns an empty map.
func NewAttributes() AttributeMap { return Attributes{} }
