//go:build !race

package payload

// Spoils: a released block is overwritten.
const Spoils = false
