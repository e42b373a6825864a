// Package match answers queries: for a prompt, how long a prefix of it each instance holds, on which tier and rank.
//
//	Query --identity, chains of keys--> index.Match --owners--> tiers.Folder --> rows --> Answer
//	                                    expect.Space --expected blocks--^
//	Routed (a router's report) ------> expect.Space
//
// A query locks nothing but the map of deployments, for one look-up. It reads the index while events change it, and sees
// of each block either the state before an event or the one behind it.
//
// An answer is lent: Answer calls a function with it, and takes its memory back when the function returns, so that a query
// allocates nothing once buffers have grown. A caller that keeps a part of an answer would later read numbers of other
// queries. With the race detector released memory is poisoned, so that tests notice (poison.go). Query returns a copy to keep.
package match
