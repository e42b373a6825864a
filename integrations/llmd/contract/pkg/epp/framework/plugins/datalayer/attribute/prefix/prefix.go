// Package prefix declares what the plug-in uses of the router's package of this path.
package prefix

import (
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/datalayer"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"
)

// PrefixCacheMatchInfoDataKey is the key that scorers of prefixes read.
var PrefixCacheMatchInfoDataKey = plugin.NewDataKey("PrefixCacheMatchInfoDataKey", "approx-prefix-cache-producer")

// PrefixCacheMatchInfo says how much of a request an endpoint caches, in blocks.
type PrefixCacheMatchInfo struct{ match, total, size, cached int }

// NewPrefixCacheMatchInfo returns the weighted match of a total.
func NewPrefixCacheMatchInfo(match, total, blockSizeTokens int) *PrefixCacheMatchInfo {
	return &PrefixCacheMatchInfo{match, total, blockSizeTokens, match}
}

// WithCachedBlockCount sets the match without weights.
func (p *PrefixCacheMatchInfo) WithCachedBlockCount(n int) *PrefixCacheMatchInfo {
	p.cached = n
	return p
}

// MatchBlocks returns the weighted match.
func (p *PrefixCacheMatchInfo) MatchBlocks() int { return p.match }

// TotalBlocks returns the blocks of the request.
func (p *PrefixCacheMatchInfo) TotalBlocks() int { return p.total }

// BlockSizeTokens returns the tokens of a block.
func (p *PrefixCacheMatchInfo) BlockSizeTokens() int { return p.size }

// CachedBlockCount returns the match without weights.
func (p *PrefixCacheMatchInfo) CachedBlockCount() int { return p.cached }

// Clone implements datalayer.Cloneable.
func (p *PrefixCacheMatchInfo) Clone() datalayer.Cloneable {
	c := *p
	return &c
}
