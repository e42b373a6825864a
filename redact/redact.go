// Package redact writes URLs, and errors about them, as people may see them: without user, password, query and fragment,
// any of which may be a secret. All that is logged, answered or printed about a URL of the settings or of a client passes
// it; requests are made with the URL itself. Its functions are pure.
package redact

import (
	"net/url"
	"regexp"
	"strings"
)

// Hidden stands for a secret.
const Hidden = "***"

// URL returns a URL as it may be shown. Text that is no URL, or not a valid one, is treated likewise. A path of the file
// system, as in ipc://, has no secrets.
func URL(text string) string {
	if !strings.ContainsAny(text, "@?#") {
		return text
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "", text
	} else if strings.HasSuffix(scheme, "ipc") {
		return text
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = Hidden + rest[at:]
	}
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end+1] + Hidden
	}
	return scheme + rest
}

// WithoutUser returns a URL without user and password, for those who are to use it without them.
func WithoutUser(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return URL(text)
	}
	u.User = nil
	return u.String()
}

// URLs returns a list with each element as URL returns it.
func URLs(list []string) []string {
	out := make([]string, len(list))
	for i, text := range list {
		out[i] = URL(text)
	}
	return out
}

// A URL in a text ends at a space, or at the quote that ends the quoted string that it begins.
var inText = regexp.MustCompile(`"[A-Za-z][A-Za-z0-9+.-]*://(?:[^"\\]|\\.)*"|[A-Za-z][A-Za-z0-9+.-]*://[^\s"]+`)

// Text returns a text with each URL in it as URL returns it.
func Text(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return inText.ReplaceAllStringFunc(text, func(match string) string {
		if match[0] == '"' {
			return `"` + URL(match[1:len(match)-1]) + `"`
		}
		end := strings.TrimRight(match, ":,;.)") // of the sentence
		return URL(end) + match[len(end):]
	})
}

// shown is an error whose text may be shown.
type shown struct{ error }

func (e shown) Error() string { return Text(e.error.Error()) }

// Unwrap returns the error as it was.
func (e shown) Unwrap() error { return e.error }

// Error returns an error with the text of err as Text returns it, nil for nil. Callers that wrap it, or branch on it, see no
// difference; its causes keep their own texts.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return shown{err}
}
