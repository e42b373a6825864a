//go:build race

package payload

// PoisonsReleased: a released block is overwritten, so that a test notices a reader that comes too
// late.
const PoisonsReleased = true
