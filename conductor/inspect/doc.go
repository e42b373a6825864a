// Package inspect says what an explanation is: how far each source holds a prompt, where that ends, and why.
//
//	Conductor.Inspect().Explain --asks indexes and sources--> Explanation --Judge--> Verdict
//
// The types are values without locks. Package explain fills them; the dialects and `conductor explain` show them.
// To add a reason, add it to the list in reasons.go, in the order of its use to an operator, and to openapi.yaml.
package inspect
