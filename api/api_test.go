package api_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestGenerated holds that the Go code was made of the .proto files as they are. make proto writes
// the code and the sums.
func TestGenerated(t *testing.T) {
	sums, err := os.ReadFile("generated.sha256")
	must.Succeed(t, err)
	var files []string
	for _, pattern := range []string{"*/v1/*.proto", "*/v1/*.go"} {
		some, err := filepath.Glob(pattern)
		must.Succeed(t, err)
		files = append(files, some...)
	}
	if n := strings.Count(string(sums), "\n"); n != len(files) || n < 6 {
		t.Errorf("%d sums of %d files", n, len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(text), filepath.ToSlash(file)); !strings.Contains(string(sums), line) {
			t.Errorf("%s is not as it was when the code was made; run make proto", file)
		}
	}
}
