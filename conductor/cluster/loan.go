package cluster

import (
	"errors"
	"io"
	"sync"
)

// loan is a body that requests read until they close it. The transport may do so after it has
// returned.
type loan struct {
	src  []byte
	open sync.WaitGroup
}

func lend(src []byte) *loan { return &loan{src: src} }

// reader returns the body from its beginning.
func (l *loan) reader() io.ReadCloser {
	l.open.Add(1)
	r := &lentBody{loan: l}
	r.rest = l.src
	return r
}

// wait returns once no request reads the body.
func (l *loan) wait() { l.open.Wait() }

// drop gives back the reader of a request that was never sent.
func (l *loan) drop() { l.open.Done() }

// lentBody is one reading of a loan.
type lentBody struct {
	loan *loan

	mu     sync.Mutex
	rest   []byte // guarded by mu
	closed bool   // guarded by mu
}

func (b *lentBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, errors.New("the body is closed")
	case len(b.rest) == 0:
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *lentBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.loan.open.Done()
	}
	return nil
}
