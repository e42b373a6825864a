// Package guard keeps a defect that one request meets from ending the picker, and with it the requests of all.
package guard

import (
	"fmt"
	"runtime/debug"
)

// Panic is the error that a panic has become.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("BUG: %v", p.Value) }

// Recover makes a panic the error of the function that defers it. It is for functions that run in a goroutine of their own, where
// nobody else can recover.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Panic{p, debug.Stack()}
	}
}
