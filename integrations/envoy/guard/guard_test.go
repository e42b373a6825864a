package guard

import (
	"errors"
	"strings"
	"testing"
)

func TestRecover(t *testing.T) {
	fails := func(f func() error) (err error) {
		defer Recover(&err)
		return f()
	}
	err := fails(func() error { panic("no such row") })
	var p *Panic
	if !errors.As(err, &p) || err.Error() != "BUG: no such row" || !strings.Contains(string(p.Stack), "TestRecover") {
		t.Errorf("the panic becomes %v", err)
	}
	if want := errors.New("refused"); fails(func() error { return want }) != want || fails(func() error { return nil }) != nil {
		t.Error("an error changes")
	}
}
