package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/config"
	"example.com/conductor/spelling"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "config",
		SuggestFor: []string{"settings"},
		Short:      "Write, check and show settings",
	}
	cmd.AddCommand(configInitCommand(), configCheckCommand(), configShowCommand(), configDefaultsCommand(), configDiffCommand())
	return cmd
}

// checked is what config check says as JSON.
type checked struct {
	File      string   `json:"file"`
	OK        bool     `json:"ok"`
	Errors    []string `json:"errors"`
	Warnings  []string `json:"warnings"`
	Listeners int      `json:"listeners"`
	Sources   int      `json:"sources"`
}

func configInitCommand() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a settings file with the dozen settings that most servers set",
		Long: "Writes FILE, conductor.yaml if it is not given, with the settings that most servers set, each with what it does\n" +
			"and an example. All but the listeners are commented out, so the file changes nothing until you edit it.\n" +
			"A file that exists is not overwritten.",
		Example: "  conductor config init\n  conductor config init /etc/conductor/config.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "conductor.yaml"
			if len(args) > 0 {
				name = args[0]
			}
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // it may get the password of a store
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s exists: name another file, or remove it first", name)
			}
			if err != nil {
				return err
			}
			_, err = io.WriteString(f, config.StarterYAML())
			if err := cmp.Or(err, f.Close()); err != nil {
				return err
			}
			if *asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), struct {
					File string `json:"file"`
				}{name})
			}
			cli.Fprintf(cmd.OutOrStdout(), "%s: edit it, then conductor config check %s\n", name, name)
			return nil
		},
	}
	asJSON = cli.JSONFlag(cmd, "print the name of the file as one JSON object")
	return cmd
}

func configCheckCommand() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report everything that is wrong with a settings file",
		Long: "Reads FILE alone, without environment and flags, and prints what it sets up, or every error with its place.\n" +
			"It looks at the files and folders that FILE names too, as the user that runs it, and refuses what serve refuses.\n" +
			"It connects to nothing and opens no port. The exit status is 1 if there is an error.",
		Example: "  conductor config check /etc/conductor/config.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			loaded, err := config.Load(config.Options{File: args[0]})
			var doubted []error
			if err == nil {
				doubted = doubts(loaded)
			}
			if err = errors.Join(append([]error{err}, refusals(loaded)...)...); err != nil {
				err = errors.New(cli.HideWords(err.Error(), args))
			}
			if *asJSON {
				return printChecked(cmd.OutOrStdout(), args[0], loaded, doubted, err)
			}
			for _, doubt := range doubted {
				cli.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", doubt)
			}
			if err := printProblems(cmd.ErrOrStderr(), loaded, err); err != nil {
				return err
			}
			cli.Fprintf(cmd.OutOrStdout(), "%s: ok\n", args[0])
			return summarize(cmd.OutOrStdout(), loaded.Config)
		},
	}
	asJSON = cli.JSONFlag(cmd, "print one JSON object, errors included")
	return cmd
}

// printChecked prints what was read of a file as JSON. It returns cli.ErrReported if there is an error.
func printChecked(w io.Writer, file string, loaded *config.Loaded, doubted []error, err error) error {
	c := checked{File: file, OK: err == nil, Errors: []string{}, Warnings: []string{}, Listeners: len(loaded.Config.Listeners),
		Sources: len(loaded.Config.Sources)}
	for _, warning := range loaded.Warnings {
		c.Warnings = append(c.Warnings, warning.Error())
	}
	for _, doubt := range doubted {
		c.Warnings = append(c.Warnings, doubt.Error())
	}
	if err != nil {
		c.Errors = strings.Split(err.Error(), "\n")
	}
	if failed := cli.PrintJSON(w, c); failed != nil {
		return failed
	}
	if err != nil {
		return cli.ErrReported
	}
	return nil
}

// printProblems prints the warnings and the error of loaded settings, one a line. It
// returns cli.ErrReported if there is an error.
func printProblems(w io.Writer, loaded *config.Loaded, err error) error {
	for _, warning := range loaded.Warnings {
		cli.Fprintf(w, "warning: %s\n", warning)
	}
	if err != nil {
		fmt.Fprintln(w, err)
		return cli.ErrReported
	}
	return nil
}

// summarize prints what a server with these settings would listen on and follow.
func summarize(w io.Writer, c config.Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cli.Fprintf(table, "listeners: %d\n", len(c.Listeners))
	for _, l := range c.Listeners {
		cli.Fprintf(table, "  %s\t%s\n", l.Address, l.Dialect)
	}
	cli.Fprintf(table, "sources: %d\n", len(c.Sources))
	for _, s := range c.Sources {
		replay := "no replay"
		if s.ReplayEndpoint != "" {
			replay = "replay " + s.ReplayEndpoint
		}
		if s.SnapshotEndpoint != "" {
			replay += ", snapshots " + s.SnapshotEndpoint
		}
		if s.Discover != "" {
			replay = "asks " + s.Discover
		}
		if s.Events != "" {
			replay = fmt.Sprintf("events %s, room for %s", s.Events, spelling.Count(s.CapacityBlocks, "block"))
		}
		size := config.Auto
		if s.BlockSize != 0 {
			size = strconv.Itoa(s.BlockSize)
		}
		cli.Fprintf(table, "  %s\t%s\t%s\tblock size %s\t%s\t%s\n", s.Key(), s.Type, s.Model, size, s.Endpoint, replay)
	}
	return table.Flush()
}

func configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the settings serve would run with, from file, environment and flags, as YAML",
		Long: `Prints every setting that "conductor serve" would run with, if it were given the same flags
and environment. The output is a settings file.`,
		Example: "  conductor config show --config /etc/conductor/config.yaml\n" +
			"  CONDUCTOR_LOG_LEVEL=debug conductor config show",
		Args: cobra.NoArgs,
	}
	config.Flags(cmd.Flags())
	flags := addIndexerFlags(cmd.Flags(), 0)
	asJSON := cli.JSONFlag(cmd, "print JSON instead of YAML")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.loadConfig()
		if err := printProblems(cmd.ErrOrStderr(), loaded, err); err != nil {
			return err
		}
		return printSettings(cmd.OutOrStdout(), loaded.Config.YAML(false), *asJSON)
	}
	return cmd
}

func configDiffCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare the settings that a server uses with those in its file",
		Long: "Asks a running server to read its settings again without using them, and prints what differs: the settings\n" +
			"that a reload would take over, and those that need a restart. The exit status is 1 if a reload would be refused.",
		Example: "  conductor config diff",
		Args:    cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer of the server")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := asks.Client()
		if err != nil {
			return err
		}
		status, answer, err := server.Ask(cmd.Context(), http.MethodPost, "/admin/reload?dry_run=1", []byte("{}"))
		if err != nil {
			return err
		}
		var r admin.Reload
		if err := json.Unmarshal(answer, &r); err != nil || r.Result == "" {
			return server.Refused("/admin/reload", status, answer)
		}
		if asJSON {
			if err := cli.PrintRaw(cmd.OutOrStdout(), append(answer, '\n')); err != nil {
				return err
			}
		} else {
			printReload(cmd.OutOrStdout(), &r)
		}
		if len(r.Errors) > 0 {
			return cli.ErrReported
		}
		return nil
	}
	return cmd
}

// printReload prints what a reload would do, one setting or source a line.
func printReload(w io.Writer, r *admin.Reload) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Changes {
		how := "reload"
		if !c.Live {
			how = "restart"
		}
		cli.Fprintf(table, "%s\t%s -> %s\t%s\n", c.Path, c.Was, c.Is, how)
	}
	for what, keys := range map[string][]string{"added": r.Added, "changed": r.Changed, "removed": r.Removed} {
		for _, k := range keys {
			cli.Fprintf(table, "source %s\t%s\treload\n", k, what)
		}
	}
	table.Flush()
	for _, e := range r.Errors {
		cli.Fprintln(w, e)
	}
	if r.Result == admin.ReloadUnchanged {
		fmt.Fprintln(w, "no difference")
	}
}

func configDefaultsCommand() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "defaults",
		Short: "Print every setting with its default, meaning, flag and variable, as YAML",
		Long: `Prints every setting with its default, what it does, and its flag and environment variable.
They are in groups, those that most servers set first. The output is a settings file; conductor config init writes a
shorter one to begin with.`,
		Example: "  conductor config defaults >config.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := config.Default()
			return printSettings(cmd.OutOrStdout(), c.YAML(true), *asJSON)
		},
	}
	asJSON = cli.JSONFlag(cmd, "print JSON, defaults alone, instead of YAML")
	return cmd
}

// printSettings prints settings that are given as YAML, as they are or as JSON.
func printSettings(out io.Writer, text string, asJSON bool) error {
	if !asJSON {
		_, err := io.WriteString(out, text)
		return err
	}
	var all map[string]any
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		return err
	}
	return cli.PrintJSON(out, all)
}
