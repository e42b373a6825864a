package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Build tells which build of a program is running.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // of the source, "" if the build did not stamp it
	Date    string `json:"date,omitempty"`   // of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CGO     bool   `json:"cgo"`
	Race    bool   `json:"race"`
	Modules int    `json:"modules"` // that the binary is made of, besides its own
}

// addSettings adds what the binary itself knows of its build.
func (b *Build) addSettings() {
	b.Go, b.OS, b.Arch = runtime.Version(), runtime.GOOS, runtime.GOARCH
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
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

// VersionTemplate is how --version prints the version: alone, so that scripts need not cut it out.
const VersionTemplate = "{{.Version}}\n"

// AddVersion adds the command version and the flag --version to a program.
func AddVersion(root *cobra.Command, b Build) {
	root.Version = b.Version
	root.SetVersionTemplate(VersionTemplate)
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Prints the version of this program, as --version does. With --json it prints the commit, the compiler and
the machine that it was built for too, which belong into a bug report.`,
		Example: "  " + root.Name() + " version\n" +
			"  " + root.Name() + " version --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !*asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), b.Version)
				return err
			}
			b.addSettings()
			return PrintJSON(cmd.OutOrStdout(), b)
		},
	}
	asJSON = JSONFlag(cmd, "print commit, compiler and machine too, as JSON")
	root.AddCommand(cmd)
}
