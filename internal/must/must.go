// Package must ends tests at errors they do not expect.
package must

// T is a test, a benchmark or a random case of a test.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Succeed ends t unless err is nil.
func Succeed(t T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
