package history

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// Files that a server wrote which knew version 2 alone are read whole: those in testdata/before are of three batches of four
// blocks from each engine. It wrote aliases and reports too, without raising the version.
func TestFilesOfTheVersionBefore(t *testing.T) {
	f := func(folder string, want []registration.Registration) {
		t.Helper()
		blocks := make(map[string]int)
		for i := range want {
			r := &want[i]
			r.Model, r.BlockSize, r.Tenant, blocks[r.Instance] = "m", 16, "default", 12
		}
		for _, name := range []string{"registrations", "snapshot"} {
			data, err := os.ReadFile(filepath.Join("testdata", "before", folder, name))
			must.Succeed(t, err)
			must.Succeed(t, readBefore(data))
			var got []registration.Registration
			c := historytest.Server(t, nil)
			how := Reading{Into: c.Sources().Snapshots().Recover(0), Sources: func(all []image.Source) {
				for i := range all {
					got = append(got, all[i].Registration)
				}
			}}
			if name == "snapshot" {
				_, err = Read(bytes.NewReader(data), how)
			} else {
				_, _, err = ReadRegistrations(bytes.NewReader(data), how)
			}
			must.Succeed(t, err)
			how.Into.Done()
			slices.SortFunc(got, func(a, b registration.Registration) int { return strings.Compare(a.Instance, b.Instance) })
			if !slices.EqualFunc(got, want, func(a, b registration.Registration) bool { return slices.Equal(a.Fields(), b.Fields()) }) {
				t.Errorf("%s of %s: %+v, want %+v", name, folder, got, want)
			}
			for instance, n := range blocks {
				if held := historytest.Held(c)[instance]; name == "snapshot" && held != n {
					t.Errorf("%s of %s: %s has %d blocks, want %d", name, folder, instance, held, n)
				}
			}
		}
	}
	plain := registration.Registration{Endpoint: "tcp://127.0.0.1:28401", ReplayEndpoint: "tcp://127.0.0.1:28402",
		Type: registration.TypeVLLM, Instance: "plain"}
	f("plain", []registration.Registration{
		{Endpoint: "tcp://127.0.0.1:28406", Type: registration.TypeVLLM, Instance: "old", Copies: "set", Owned: "drop", Clear: "device",
			Lora: "a"},
		plain,
	})
	f("fields", []registration.Registration{
		{Endpoint: "tcp://127.0.0.1:28403", Type: registration.TypeVLLM, Instance: "alias", Aliases: []string{"n", "o"}},
		{Endpoint: "tcp://127.0.0.1:28404", Type: "SGLang", Instance: "full", Reports: registration.ReportsFull},
		plain,
	})
}
