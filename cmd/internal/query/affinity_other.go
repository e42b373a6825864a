//go:build !linux

package query

import "errors"

// Elsewhere a process has one processor's worth of Go, wherever that runs.
func cores() (server, client int, ok bool) { return 0, 0, false }

func pin(int) error { return errors.ErrUnsupported }

func pinned(int) (release func(), err error) { return nil, errors.ErrUnsupported }
