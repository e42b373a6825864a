package request

import (
	"strings"
	"testing"
)

// TestAnswersAreBounded reads answers of the most bytes, and of more.
func TestAnswersAreBounded(t *testing.T) {
	if got, err := readAnswer(strings.NewReader("1234"), 4); err != nil || string(got) != "1234" {
		t.Errorf("%q %v", got, err)
	}
	if got, err := readAnswer(strings.NewReader("12345"), 4); err == nil || got != nil {
		t.Errorf("%q of an answer that is too large", got)
	}
}
