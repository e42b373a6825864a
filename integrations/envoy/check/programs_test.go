package check

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"example.com/conductor/client"
)

// programs are a real Conductor and a real picker in front of the engines of an env.
type programs struct {
	conductor *process // nil if the test answers in its place
	picker    *wholePicker
}

const realBlock = 16 // tokens

// startReal starts what start does, but with the real picker, which asks a real Conductor about the engines. The engines serve the model
// "m" and publish no events, so that Conductor expects them to have what the picker reports. url, if it is not "", is asked in place of
// a Conductor. Nothing gives up soon, because the machine may be slow; args can change that.
func startReal(t *testing.T, v variant, s settings, url string, args ...string) (*env, *programs) {
	t.Helper()
	for _, name := range []string{"ENVOY_BIN", "CONDUCTOR_BINARY", "PICKER_BINARY"} {
		if os.Getenv(name) == "" {
			t.Skipf("%s is not set; run make envoy-check", name)
		}
	}
	p := &programs{picker: &wholePicker{address: freeAddress(t), admin: freeAddress(t)}}
	s.external = func(e *env) string {
		if url == "" {
			p.conductor, url = startConductor(t)
			p.register(e, url)
		}
		p.picker.start(t, url, append(append([]string{}, patient...), args...)...)
		p.picker.up()
		return p.picker.address
	}
	return start(t, v, s), p
}

// register registers the engines of an env.
func (p *programs) register(e *env, url string) {
	e.t.Helper()
	c, err := client.New(url)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, engine := range []*engine{e.a, e.b} {
		if err := c.Register(e.t.Context(), client.Registration{
			Instance: engine.name, Address: "http://" + engine.address, Model: "m", Type: "Standard", BlockSize: realBlock,
			Events: "none", CapacityBlocks: 1 << 20,
		}); err != nil {
			e.t.Fatal(err)
		}
	}
}

// choices returns how many choices the picker made for a reason, "" for all.
func (p *programs) choices(reason string) int {
	p.picker.t.Helper()
	if reason != "" {
		reason = fmt.Sprintf("reason=%q", reason)
	}
	return int(p.picker.metric("conductor_picker_choices_total", reason))
}

// reasonOf returns what decided where a request went, "" if no picker was asked. The request has to ask for it, see explained.
func reasonOf(a answer) string {
	reason, _, _ := strings.Cut(a.header.Get("X-Conductor-Picker"), ":")
	return reason
}

// explained are headers of a request that asks how its engine was chosen.
var explained = []string{"X-Conductor-Picker-Debug", "1"}

// TestRealPicker sees that a prompt goes where it was sent before.
func TestRealPicker(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			e, p := startReal(t, v, settings{}, "")
			for i := range 8 {
				body := completion(i, 64)
				first, _ := e.post(body, explained...)
				if first.status != http.StatusOK || reasonOf(first) != "no_prefix" {
					t.Fatalf("a new prompt: %s by %q", first, first.header.Get("X-Conductor-Picker"))
				}
				until(t, func() string { // the report of the first may be under way
					again, _ := e.post(body, explained...)
					if again.status != http.StatusOK || reasonOf(again) != "prefix" {
						return fmt.Sprintf("the prompt again: %s by %q", again, again.header.Get("X-Conductor-Picker"))
					}
					if was, is := first.header.Get("X-Engine"), again.header.Get("X-Engine"); is != was {
						t.Errorf("the prompt again: %s, not %s: %s", is, was, again.header.Get("X-Conductor-Picker"))
					}
					return ""
				})
			}
			if all, known := p.choices(""), p.choices("prefix")+p.choices("no_prefix"); known != all || all < 16 {
				t.Errorf("%d choices, %d of them by an answer of Conductor", all, known)
			}
		})
	}
}

// completion returns the body of a request with n token ids. The first one is different for each prompt i.
func completion(i, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m","max_tokens":16,"prompt":[%d`, 200_000+i)
	for j := 1; j < n; j++ {
		fmt.Fprintf(&b, ",%d", 1000+j*7919%120_000)
	}
	b.WriteString("]}")
	return b.String()
}
