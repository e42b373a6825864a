//go:build race

package conductor

// poison spoils what an answer has borrowed once it is released.
const poison = true
