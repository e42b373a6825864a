package reach

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"example.com/conductor/redact"
)

// CheckURL returns an error if text is no base URL of an HTTP server that paths can be put behind. The error begins with the URL,
// without its secrets, and says what to write.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case CheckExpanded(text) != nil:
		err = CheckExpanded(text)
	case strings.TrimSpace(text) != text:
		err = errors.New("has space around it: write it without")
	case !strings.Contains(text, ":/") && redact.URL(text) == text && CheckURL("http://"+text) == nil:
		err = fmt.Errorf("is no URL; write http://%s", text)
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		err = errors.New("is no URL; write http://host:port or https://host:port")
	case CheckHost(u.Hostname()) != nil:
		err = CheckHost(u.Hostname())
	case u.Port() != "":
		err = CheckPort(u.Port())
	}
	if err == nil && strings.ContainsAny(text, "?#") {
		err = errors.New("has more than a path behind its host: write it without ? and #")
	}
	if err != nil {
		err = fmt.Errorf("%q %w", redact.URL(text), err)
	}
	return err
}
