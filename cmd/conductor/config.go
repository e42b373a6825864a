package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"kvconductor/conductor"
	"kvconductor/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show settings",
	}
	cmd.AddCommand(configCheckCommand(), configShowCommand(), configDefaultsCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Report everything that is wrong with a settings file",
		Long: "Reads FILE alone, without environment and flags, and prints what it sets up, or every error with its place.\n" +
			"It connects to nothing. The exit status is 1 if there is an error.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			loaded, err := loadConfig(config.Options{File: args[0]})
			if err := printProblems(cmd.ErrOrStderr(), loaded, err); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", args[0])
			return summarize(cmd.OutOrStdout(), loaded.Config)
		},
	}
}

// loadConfig reads settings, and checks their sources together as the registry does.
func loadConfig(o config.Options) (*config.Loaded, error) {
	o.Check = func(c config.Config) (out []config.Complaint) {
		var all []conductor.Registration
		for _, s := range c.Sources {
			all = append(all, registration(s))
		}
		for _, f := range conductor.Faults(all) {
			path := func(source int) string { return fmt.Sprintf("sources[%d].%s", source, f.Field) }
			complaint := config.Complaint{Path: path(f.At), Message: f.Reason, Warning: f.Finding != ""}
			if f.With >= 0 {
				complaint.Other = path(f.With)
			}
			out = append(out, complaint)
		}
		return out
	}
	return config.Load(o)
}

// printProblems prints the warnings and the error of loaded settings, one a line. It
// returns errReported if there is an error.
func printProblems(w io.Writer, loaded *config.Loaded, err error) error {
	for _, warning := range loaded.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if err != nil {
		fmt.Fprintln(w, err)
		return errReported
	}
	return nil
}

// summarize prints what a server with these settings would listen on and follow.
func summarize(w io.Writer, c config.Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "listeners: %d\n", len(c.Listeners))
	for _, l := range c.Listeners {
		fmt.Fprintf(table, "  %s\t%s\n", l.Address, l.Dialect)
	}
	fmt.Fprintf(table, "sources: %d\n", len(c.Sources))
	for _, s := range c.Sources {
		replay := "no replay"
		if s.ReplayEndpoint != "" {
			replay = "replay " + s.ReplayEndpoint
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\tblock size %d\t%s\t%s\n", s.Key(), s.Type, s.ModelName, s.BlockSize, s.Endpoint, replay)
	}
	return table.Flush()
}

func configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the settings serve would run with, from file, environment and flags, as YAML",
		Args:  cobra.NoArgs,
	}
	config.Flags(cmd.Flags())
	flags := addIndexerFlags(cmd.Flags(), 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.load()
		if err := printProblems(cmd.ErrOrStderr(), loaded, err); err != nil {
			return err
		}
		_, err = io.WriteString(cmd.OutOrStdout(), loaded.Config.YAML(false))
		return err
	}
	return cmd
}

func configDefaultsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "defaults",
		Short: "Print every setting with its default, meaning, flag and variable, as YAML",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := config.Default()
			_, err := io.WriteString(cmd.OutOrStdout(), c.YAML(true))
			return err
		},
	}
}
