package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/access"
)

// tokenPrefix lets scanners of leaked secrets find tokens.
const tokenPrefix = "kvc_"

func tokenCommand() *cobra.Command {
	var name, out string
	var roles, tenants []string
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token, and its entry for the file of credentials",
		Long: `Makes a random token. The token goes to a new file that its owner alone may read,
and clients send it (--token-file). The entry goes to standard output, for the list
tokens of the file that auth.file names. The entry does not hold the token.`,
		Example: "  conductor token --name router-a --role query --tenant acme --out router-a.token >>credentials.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := access.ParseRoles(roles); err != nil {
				return err
			}
			var secret [32]byte
			rand.Read(secret[:])
			token := tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
			file, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(file, token); err != nil {
				return err
			}
			if err := file.Close(); err != nil {
				return err
			}
			digest := sha256.Sum256([]byte(token))
			fields := map[string]any{"name": name, "sha256": hex.EncodeToString(digest[:]), "roles": roles, "tenants": tenants}
			if *asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), fields)
			}
			entry, err := yaml.Marshal([]map[string]any{fields})
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), "  "+strings.TrimSuffix(strings.ReplaceAll(string(entry), "\n", "\n  "), "  "))
			return nil
		},
	}
	asJSON = cli.JSONFlag(cmd, "print the entry as a JSON object")
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "name of the client, for logs")
	f.StringSliceVar(&roles, "role", nil, "role of the client: query, register, metrics, peer, admin; may be given again")
	f.StringSliceVar(&tenants, "tenant", []string{"*"}, "tenant that the client may name; may be given again; * is every tenant")
	f.StringVar(&out, "out", "", "`file` for the token, which must not exist")
	for _, required := range []string{"name", "role", "out"} {
		cmd.MarkFlagRequired(required)
	}
	return cmd
}
