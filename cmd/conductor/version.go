package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// commit and date are those of the source, stamped by the build; "" if it was not.
var commit, date string

// build tells which build is running.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"` // of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CGO     bool   `json:"cgo"`
	Race    bool   `json:"race"`
	Modules int    `json:"modules"` // that the binary is made of, besides its own
}

func thisBuild() build {
	b := build{Version: version, Commit: commit, Date: date, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Modules = len(info.Deps)
		for _, s := range info.Settings {
			switch s.Key {
			case "CGO_ENABLED":
				b.CGO = s.Value == "1"
			case "-race":
				b.Race = s.Value == "true"
			}
		}
	}
	return b
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Prints the version of this program. With --json it prints the commit, the compiler and the
machine that it was built for too, which belong into a bug report.`,
		Example: "  conductor version\n" +
			"  conductor version --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
				return err
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(thisBuild())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print commit, compiler and machine too, as JSON")
	return cmd
}
