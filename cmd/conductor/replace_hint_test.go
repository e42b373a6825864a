package main

import (
	"strings"
	"testing"
)

// TestRegisterSaysHowToReplace requires that register names --replace where a source is registered with other fields, since that
// is what most findings ask for.
func TestRegisterSaysHowToReplace(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "serve", "--listen", "127.0.0.1:0=conductor")
	register := func(size string, flags ...string) string {
		_, out, errs := runCLI(append([]string{"register", "tcp://127.0.0.1:1", "--instance", "a", "--model", "m", "--type", "vLLM",
			"--block-size", size, "--server", p.url}, flags...)...)
		return out + errs
	}
	if text := register("16"); !strings.Contains(text, "connecting") {
		t.Fatal(text)
	}
	const hint = `is registered with another block_size: have "16", got "64"; --replace puts this registration in its place`
	if text := register("64"); !strings.Contains(text, hint) {
		t.Errorf("%s, want %s", text, hint)
	}
	if text := register("64", "--replace"); !strings.Contains(text, "connecting") {
		t.Error(text)
	}
}
