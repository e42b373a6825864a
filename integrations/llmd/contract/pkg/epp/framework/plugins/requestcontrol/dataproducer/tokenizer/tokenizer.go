// Package tokenizer declares what the plug-in uses of the router's package of this path.
package tokenizer

import "github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"

// TokenizedPromptDataKey is the key of the token producer.
var TokenizedPromptDataKey = plugin.NewDataKey("TokenizedPrompt", "token-producer")
