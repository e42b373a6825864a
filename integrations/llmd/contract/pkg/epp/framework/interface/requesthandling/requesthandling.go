// Package requesthandling declares what the plug-in uses of the router's package of this path.
package requesthandling

// InferenceRequestBody is what the router has read of a request.
type InferenceRequestBody struct {
	// TokenizedRequest is set by the token producer.
	TokenizedRequest *TokenizedRequest
}

// TokenizedRequest has the prompts of a request.
type TokenizedRequest struct {
	Prompts   []PromptTokens
	CacheSalt string
}

// PromptTokens is one prompt.
type PromptTokens struct {
	TokenIDs           []uint32
	MultiModalFeatures []MultiModalFeature
}

// MultiModalFeature is an image, and where its tokens are.
type MultiModalFeature struct {
	Hash           string
	Offset, Length int
}
