// Package redact writes URLs, and errors about them, as people may see them: without user, password, query and fragment,
// any of which may be a secret. All that is logged, answered or printed about a URL of the settings or of a client passes
// it; requests are made with the URL itself. Its functions are pure.
package redact

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
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

// Word returns what a user wrote in place of a name, such as an argument that a command does not take: as URL does if there is
// a colon, without which names of sources and files have no secrets.
func Word(text string) string {
	if !strings.Contains(text, ":") {
		return text
	}
	return URL(text)
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

var (
	// inText finds URLs in a text, and user:password@host without a scheme. A URL ends at a space, or at the quote that ends the
	// quoted string that it begins.
	inText = regexp.MustCompile(`"[A-Za-z][A-Za-z0-9+.-]*://(?:[^"\\]|\\.)*"|[A-Za-z][A-Za-z0-9+.-]*://[^\s"]+|[^\s"@]*:[^\s"]*@[^\s"]+`)
	// ofFaulty finds what net/url quotes of a URL that it cannot read: of http://user:secret/x@host the port, which it takes to
	// be ":secret".
	ofFaulty = regexp.MustCompile(`(invalid (?:port|URL escape|character) )"(?:[^"\\]|\\.)*"`)
)

// Text returns a text with each URL in it as URL returns it.
func Text(text string) string {
	if !strings.Contains(text, "://") && !strings.Contains(text, "@") {
		return text
	}
	return hidePieces(text, inText.ReplaceAllStringFunc(text, func(match string) string {
		if match[0] == '"' {
			return `"` + URL(match[1:len(match)-1]) + `"`
		}
		end := strings.TrimRight(match, ":,;.)") // of the sentence
		return URL(end) + match[len(end):]
	}))
}

// hidePieces returns what is shown of a text, without pieces of the URLs that are shown in part.
func hidePieces(text, shown string) string {
	if shown == text {
		return text
	}
	return ofFaulty.ReplaceAllString(shown, `$1"`+Hidden+`"`)
}

// shown is an error whose text may be shown.
type shown struct{ error }

func (e shown) Error() string {
	text := e.error.Error()
	if about := (*url.Error)(nil); errors.As(e.error, &about) { // it says which part of the text is the URL, whatever it looks like
		text = hidePieces(text, strings.ReplaceAll(text, strconv.Quote(about.URL), strconv.Quote(URL(about.URL))))
	}
	return Text(text)
}

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
