//go:build !race

package kvconductor_test

// shapeExceptions lists what breaks a rule of TestShape, with its present value. The aim is an empty table: take rows
// out, add none. "go test . -run Shape -update-shape" rewrites this file if values only fell. If a rebase conflicts
// here, take the other side's file and run that.
var shapeExceptions = []exception{}
