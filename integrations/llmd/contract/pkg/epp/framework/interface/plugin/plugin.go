// Package plugin declares what the plug-in uses of the router's package of this path.
package plugin

import (
	"context"
	"encoding/json"
)

// TypedName names a plug-in by its type and its name in the configuration.
type TypedName struct{ Type, Name string }

// Plugin is any plug-in.
type Plugin interface{ TypedName() TypedName }

// DataKey names data by type and producer.
type DataKey struct{ dataType, producer string }

// NewDataKey returns the key of a type and its default producer.
func NewDataKey(dataType, producer string) DataKey { return DataKey{dataType, producer} }

// WithNonEmptyProducerName returns the key of another producer, if that has a name.
func (k DataKey) WithNonEmptyProducerName(name string) DataKey {
	if name != "" {
		k.producer = name
	}
	return k
}

// DataDependencies are the data that a plug-in reads.
type DataDependencies struct{ Required, Optional map[DataKey]any }

// ProducerPlugin declares the data that it writes.
type ProducerPlugin interface {
	Plugin
	Produces() map[DataKey]any
}

// ConsumerPlugin declares the data that it reads.
type ConsumerPlugin interface {
	Plugin
	Consumes() DataDependencies
}

// StateDumper shows its state.
type StateDumper interface {
	DumpState() (json.RawMessage, error)
}

// Handle is what a factory gets of the router.
type Handle interface{ Context() context.Context }

// FactoryFunc makes a plug-in. The decoder is nil if the configuration has no parameters.
type FactoryFunc func(name string, parameters *json.Decoder, handle Handle) (Plugin, error)

// StabilityLevel says how stable a plug-in is.
type StabilityLevel string

// StabilityAlpha needs --allow-experimental-plugins.
const StabilityAlpha StabilityLevel = "Alpha"

// Registry has the factories by type.
var Registry = map[string]FactoryFunc{}

// Register adds a factory.
func Register(pluginType string, _ StabilityLevel, factory FactoryFunc) {
	Registry[pluginType] = factory
}
