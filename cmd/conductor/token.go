package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/access"
)

// tokenEntry is a client in the file of credentials. It holds no secret.
type tokenEntry struct {
	Name    string   `yaml:"name" json:"name"`
	SHA256  string   `yaml:"sha256" json:"sha256"`
	Roles   []string `yaml:"roles" json:"roles"`
	Tenants []string `yaml:"tenants" json:"tenants"`
	Token   string   `yaml:"-" json:"token,omitempty"` // printed if no file takes it
}

func tokenCommand() *cobra.Command {
	var entry tokenEntry
	var file, out string
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token for a client, and add it to the server's file of credentials",
		Long: `Makes a random token for a client of a server.

With --file it adds the client to that file, which the server reads if its setting auth.file
(CONDUCTOR_AUTH_FILE) names it. A new file is readable by its owner alone; in one that exists,
all other clients and comments stay. A server that uses the file takes the change over by
itself. The file does not hold the token but its SHA-256.

The token is printed once, alone on standard output; it cannot be shown again. With --out it
goes to a new file instead, which its owner alone may read, for --token-file of clients.

Without --file the entry for the file of credentials is printed, to be added by hand: on
standard output if --out takes the token, else on standard error.`,
		Example: "  conductor token --name router-a --role query\n" +
			"  conductor token --name router-a --role query --tenant acme --file /etc/conductor/credentials.yaml\n" +
			"  conductor token --name prometheus --role metrics --file credentials.yaml --out prometheus.token",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := access.ParseRoles(entry.Roles); err != nil {
				return cli.Usagef("--role: %w", err)
			}
			var secret [32]byte
			rand.Read(secret[:])
			token := access.TokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
			digest := sha256.Sum256([]byte(token))
			entry.SHA256 = hex.EncodeToString(digest[:])
			if out != "" {
				if err := writeSecret(out, token); err != nil {
					return err
				}
			}
			if file != "" {
				if err := addCredentials(file, &entry); err != nil {
					if out != "" {
						os.Remove(out) // a token that no server knows
					}
					return err
				}
				tellFile(cmd, file, out)
			}
			if *asJSON {
				if out == "" {
					entry.Token = token
				}
				return cli.PrintJSON(cmd.OutOrStdout(), entry)
			}
			if file == "" {
				to := cmd.OutOrStdout()
				if out == "" {
					to = cmd.ErrOrStderr()
				}
				if err := entry.print(to, out == ""); err != nil {
					return err
				}
			}
			if out == "" {
				cmd.PrintErrln(tokenFollows)
				fmt.Fprintln(cmd.OutOrStdout(), token)
			}
			return nil
		},
	}
	asJSON = cli.JSONFlag(cmd, "print the entry as a JSON object, with the token unless --out takes it")
	f := cmd.Flags()
	f.StringVar(&entry.Name, "name", "", "name of the client, for logs")
	f.StringSliceVar(&entry.Roles, "role", nil, "role of the client: query, register, metrics, peer, admin; may be given again")
	f.StringSliceVar(&entry.Tenants, "tenant", []string{"*"}, "tenant that the client may name; may be given again; * is every tenant")
	f.StringVar(&file, "file", "", "`file` of credentials to add the client to; it is made if it does not exist")
	f.StringVar(&out, "out", "", "`file` for the token, which must not exist")
	for _, required := range []string{"name", "role"} {
		cmd.MarkFlagRequired(required)
	}
	return cmd
}

// tokenFollows stands before a token.
const tokenFollows = "The token follows. It is shown this once: the client sends it as Authorization: Bearer TOKEN."

// print prints the entry as it stands in a file of credentials, with or without saying so.
func (e *tokenEntry) print(out io.Writer, explained bool) error {
	text, err := yaml.Marshal([]*tokenEntry{e})
	if err != nil {
		return err
	}
	if explained {
		fmt.Fprintln(out, "Add this entry below tokens: in the file that the server's setting auth.file names (--file does it for you):")
	}
	_, err = fmt.Fprint(out, "  "+strings.TrimSuffix(strings.ReplaceAll(string(text), "\n", "\n  "), "  "))
	return err
}

// tellFile says what makes a server use a file of credentials, and a client its token.
func tellFile(cmd *cobra.Command, file, out string) {
	cmd.PrintErrf("Added to %s. A server uses it with the setting auth.file (auth: {file: %s}, or CONDUCTOR_AUTH_FILE),\n"+
		"and the user that it runs as has to be able to read it. A server that uses it already knows the client within seconds.\n", file,
		file)
	if out != "" {
		cmd.PrintErrf("The client sends the token in %s: commands by --token-file %s, others as Authorization: Bearer TOKEN.\n", out, out)
	}
}

// writeSecret writes a line to a new file for its owner's eyes.
func writeSecret(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: a token is written to a new file only", name)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, text)
	return errors.Join(err, file.Close())
}

// addCredentials adds a client to a file of credentials, which may not exist yet. The new text is first written
// and checked in a file next to it, which also keeps others from adding at the same time, and stays there if this
// process ends in the middle. Then the file itself is changed in place, so that its owner, mode and links stay.
func addCredentials(name string, entry *tokenEntry) error {
	draft := name + ".new"
	file, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: another conductor token is at work, or was stopped; remove the file then", draft)
	}
	if err != nil {
		return err
	}
	text, err := draftCredentials(file, name, entry)
	if err != nil {
		os.Remove(draft)
		return err
	}
	if file, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		os.Remove(draft)
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Truncate(int64(len(text))), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("%s may be cut off, %s is whole: %w", name, draft, err)
	}
	return os.Remove(draft)
}

// draftCredentials reads a file of credentials, writes it with the entry to draft, which it closes, and returns that
// text. It refuses what a server would refuse.
func draftCredentials(draft *os.File, name string, entry *tokenEntry) ([]byte, error) {
	defer draft.Close()
	old, err := os.ReadFile(name)
	switch {
	case err == nil:
		if _, err := access.LoadCredentials(name); err != nil {
			return nil, fmt.Errorf("nothing is added, because a server would refuse the file as it is:\n%w", err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	text, err := withEntry(old, entry)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, err = draft.Write(text)
	if err = errors.Join(err, draft.Sync()); err != nil {
		return nil, err
	}
	if _, err := access.ParseCredentials("", text); err != nil { // without places, which would be those in the draft
		return nil, fmt.Errorf("nothing is added to %s: %w", name, err)
	}
	return text, nil
}

// withEntry adds an entry to the text of a file of credentials, "" for a new one.
func withEntry(old []byte, entry *tokenEntry) ([]byte, error) {
	var doc, added yaml.Node
	if err := yaml.Unmarshal(old, &doc); err != nil {
		return nil, err
	}
	if err := added.Encode(entry); err != nil {
		return nil, err
	}
	for i := 1; i < len(added.Content); i += 2 {
		if added.Content[i].Kind == yaml.SequenceNode {
			added.Content[i].Style = yaml.FlowStyle // as the documents write roles
		}
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode { // a new file, or comments alone
		whole := map[string][]*yaml.Node{"tokens": {&added}}
		text, err := encodeYAML(whole)
		return append(old, text...), err
	}
	root := doc.Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		if list := root.Content[i+1]; root.Content[i].Value == "tokens" {
			if list.Kind != yaml.SequenceNode { // null: tokens: without a list
				*list = yaml.Node{Kind: yaml.SequenceNode}
			}
			list.Style &^= yaml.FlowStyle
			list.Content = append(list.Content, &added)
			return encodeYAML(&doc)
		}
	}
	root.Style &^= yaml.FlowStyle
	root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "tokens"},
		&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{&added}})
	return encodeYAML(&doc)
}

func encodeYAML(v any) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(v)
	return b.Bytes(), errors.Join(err, e.Close())
}
