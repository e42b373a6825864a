//go:build !race

package payload

// PoisonsReleased: a released block is overwritten.
const PoisonsReleased = false
