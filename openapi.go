// Package kvconductor holds what belongs to the whole repository: the
// description of its HTTP API, and its documents.
package kvconductor

import "embed"

// OpenAPI is openapi.yaml, as served at /openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI []byte

// Documents are the Markdown files here and all that is below docs, as served below /docs.
//
//go:embed *.md docs
var Documents embed.FS
