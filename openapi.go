// Package kvconductor holds what belongs to the whole repository: the
// description of its HTTP API.
package kvconductor

import _ "embed"

// OpenAPI is openapi.yaml, as served at /openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI []byte
