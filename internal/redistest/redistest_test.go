package redistest

import (
	"os"
	"path/filepath"
	"testing"

	"example.com/conductor/internal/must"
)

func TestBinaryOfStoreServer(t *testing.T) {
	link := filepath.Join(t.TempDir(), "store")
	must.Succeed(t, os.Symlink(Binary(t), link))
	t.Setenv("STORE_SERVER", link)
	if got := Binary(t); got != link {
		t.Errorf("with STORE_SERVER=%s the server is %s", link, got)
	}
}
