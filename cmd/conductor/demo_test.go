package main

import (
	"bufio"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"kvconductor/internal/must"
)

// TestDemoWithPage runs the demo as make demo UI=1 does: it prints the address of the page, the
// fleet works, and a signal ends all of it.
func TestDemoWithPage(t *testing.T) {
	t.Parallel()
	cmd := command("demo", "--ui")
	errs := new(transcript)
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	said := new(transcript)
	page := ""
	lines := bufio.NewScanner(out)
	for address := regexp.MustCompile(`^page: +(http://\S+/ui) `); page == "" && lines.Scan(); {
		said.Write(append(lines.Bytes(), '\n'))
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			page = m[1]
		}
	}
	if page == "" {
		t.Fatalf("no address of a page: %s%s", said, errs)
	}
	if status, text := get(page); status != 200 || !strings.Contains(text, "<title>Conductor</title>") {
		t.Errorf("page: %d %.200s", status, text)
	}
	eventually(t, "the fleet does not work", func() (string, bool) {
		_, text := get(strings.TrimSuffix(page, "/ui") + "/admin/stats?top=1")
		busy := regexp.MustCompile(`"sources":13,.*"events_per_s":[1-9].*"queries_per_s":[1-9]`).MatchString(text)
		return text, busy
	})
	must.Succeed(t, cmd.Process.Signal(syscall.SIGINT))
	for lines.Scan() {
		said.Write(append(lines.Bytes(), '\n'))
	}
	if err := cmd.Wait(); err != nil {
		exit, _ := err.(*exec.ExitError)
		t.Errorf("exit %v: %s%s", exit, said, errs)
	}
	if !strings.Contains(said.String(), "interrupted") {
		t.Errorf("no report: %s", said)
	}
	if status, text := get(page); status != 0 {
		t.Errorf("the server is still there: %d %.100s", status, text)
	}
}
