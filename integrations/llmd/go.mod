module example.com/conductor/integrations/llmd

go 1.26.0

require (
	example.com/conductor v0.0.0
	github.com/llm-d/llm-d-router v0.10.0
	github.com/vmihailenco/msgpack/v5 v5.4.1
)

require github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect

// The Go proxy has no such version: contract declares what the plug-in uses.
replace github.com/llm-d/llm-d-router => ./contract

replace example.com/conductor => ../..
