package reach

import (
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestCheckURL holds that the fault of a URL says what to write, and shows no secret.
func TestCheckURL(t *testing.T) {
	for _, text := range []string{"http://engine:8000", "https://engine/base/", "http://[::1]:8000", "HTTP://engine", "http://u:p@engine"} {
		must.Report(t, CheckURL(text))
	}
	for text, want := range map[string]string{
		"engine:8000":           `"engine:8000" is no URL; write http://engine:8000`,
		"10.0.0.1:8000/v1":      `write http://10.0.0.1:8000/v1`,
		"engine":                `write http://engine`,
		"":                      `write http://host:port or https://host:port`,
		"u:secret@engine:8000":  `"***@engine:8000" is no URL; write http://host:port or https://host:port`,
		"tcp://engine:8000":     `write http://host:port or https://host:port`,
		"http:/engine:8000":     `names no host`,
		" http://engine":        `write it without`,
		"http://engine\n":       `write it without`,
		"http://engine?k=v":     `"http://engine?***" has more than a path`,
		"http://engine/?":       `has more than a path`,
		"http://engine#":        `has more than a path`,
		"http://":               `names no host`,
		"http://0.0.0.0:8000":   `is a wildcard`,
		"http://${POD_IP}:8000": `the variable ${POD_IP}`,
		"http://engine:0":       `has port 0`,
		"http://engine:66666":   `has no valid port`,
		"http://engine:x":       `is no URL`,
	} {
		if err := CheckURL(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
