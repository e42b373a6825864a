package harness

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

type count struct {
	N int `json:"n"`
}

func (c count) Table(w io.Writer) { fmt.Fprintf(w, "%d <things>\n", c.N) }

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

// TestPrintReport holds that both forms are whole, and that an error of the writer shows.
func TestPrintReport(t *testing.T) {
	f := func(asJSON bool, want string) {
		t.Helper()
		var out strings.Builder
		if err := Print(&out, count{3}, asJSON); err != nil || out.String() != want {
			t.Errorf("JSON %t: %q, %v", asJSON, out.String(), err)
		}
		if Print(full{}, count{3}, asJSON) == nil {
			t.Errorf("JSON %t: an error is lost", asJSON)
		}
	}
	f(false, "3 <things>\n")
	f(true, "{\n  \"n\": 3\n}\n")
}
