//go:build race

package payload

// Spoils: a released block is overwritten, so that a test notices a reader that comes too
// late.
const Spoils = true
