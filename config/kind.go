package config

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/reach"
)

// A kind is how a scalar is written. The same text means the same in a file, in
// the environment and in a flag.
type kind struct {
	word  string   // what usage texts call it
	wants string   // completes "must be …"
	tags  []string // YAML tags a file may use for it
	parse func(string) (any, error)
	words []string // the choices, where it is one
	// literal is a text that a file may write for it, although texts are none of its tags; "" for none.
	literal string
	list    bool // a []string; a file may write a list for it
}

// show renders a value of any kind as text that its kind reads.
func show(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return showDuration(v)
	case int64:
		if v == AutoSize {
			return Auto
		}
		return showSize(v)
	case int:
		if v == AutoCount {
			return Auto
		}
	case []string:
		return strings.Join(v, ",")
	}
	return fmt.Sprint(v)
}

// text is any string; a file must quote what YAML would read as a number.
func text() kind {
	return kind{
		word: "string", wants: "text", tags: []string{"!!str"},
		parse: func(s string) (any, error) { return s, nil },
	}
}

// filled is a text of at least one byte.
func filled() kind {
	k := text()
	k.parse = func(s string) (any, error) {
		if s == "" {
			return nil, errors.New("must not be empty")
		}
		return s, nil
	}
	return k
}

// choice is one of a few words, in any case.
func choice(words ...string) kind {
	k := text()
	k.word, k.words = strings.Join(words, "|"), words
	if k.wants = "one of " + strings.Join(words, ", "); len(words) == 1 {
		k.wants = words[0]
	}
	k.parse = func(s string) (any, error) {
		for _, w := range words {
			if strings.EqualFold(w, s) {
				return w, nil
			}
		}
		if len(words) == 1 {
			return nil, fmt.Errorf("%q is not %s, the only word for it", s, words[0])
		}
		return nil, fmt.Errorf("%q is none of %s%s", s, strings.Join(words, ", "), didYouMean(s, words))
	}
	return k
}

// header is the name of an HTTP header.
func header() kind {
	k := text()
	k.wants = "the name of an HTTP header"
	k.parse = func(s string) (any, error) {
		if s == "" || strings.Trim(s, headerBytes) != "" {
			return nil, fmt.Errorf("invalid HTTP header name %q", s)
		}
		return s, nil
	}
	return k
}

// headerBytes are those of a token of RFC 9110.
const headerBytes = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// truth is true or false, in the words people use for them.
func truth() kind {
	return kind{
		word: "bool", wants: "true or false", tags: []string{"!!bool", "!!str", "!!int"},
		parse: func(s string) (any, error) {
			switch strings.ToLower(s) {
			case "true", "yes", "on", "1":
				return true, nil
			case "false", "no", "off", "0":
				return false, nil
			}
			return nil, fmt.Errorf("%q is neither true nor false", s)
		},
	}
}

// urls is a list of base URLs.
func urls() kind { return list("urls", "a list of URLs", checkURL) }

// urlOrNone is a base URL, or nothing.
func urlOrNone() kind {
	return kind{
		word: "url", wants: "a URL", tags: []string{"!!str"},
		parse: func(s string) (any, error) {
			if s == "" {
				return s, nil
			}
			return s, checkURL(s)
		},
	}
}

// storeURL is the URL of a store, or nothing.
func storeURL() kind {
	k := urlOrNone()
	k.parse = func(s string) (any, error) {
		if s != "" && !strings.HasPrefix(s, "redis://") && !strings.HasPrefix(s, "rediss://") {
			return nil, errors.New("must begin with redis:// or rediss://")
		}
		if s == "" {
			return s, nil
		}
		// No error says more of the URL than its host, for it may have a password.
		_, host, _ := strings.Cut(s, "://")
		host, _, _ = strings.Cut(host, "/")
		host = host[strings.LastIndexByte(host, '@')+1:]
		if err := reach.CheckExpanded(host); err != nil {
			return nil, fmt.Errorf("host %q %w", host, err)
		}
		if u, err := url.Parse(s); err != nil {
			return nil, errors.New("is no URL, perhaps because a variable was not replaced; write redis://user:password@host:port/database, with %XX for special characters of the password")
		} else if err := checkURLHost(u); u.Hostname() != "" && err != nil { // without a host it is this machine
			return nil, fmt.Errorf("host %q %w", host, err)
		}
		return s, nil
	}
	return k
}

// addresses is a list of hosts with ports.
func addresses() kind {
	return list("addresses", "a list of host:port", func(s string) error {
		if _, err := checkAddress(s); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(s)
		if err := cmp.Or(reach.CheckHost(host), reach.CheckPort(port)); err != nil {
			return fmt.Errorf("%q %w", s, err)
		}
		return nil
	})
}

// ratio is a number from 0 to 1.
func ratio() kind {
	return kind{
		word: "ratio", wants: "a number from 0 to 1", tags: []string{"!!float", "!!int"},
		parse: func(s string) (any, error) {
			r, err := strconv.ParseFloat(s, 64)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%q is no number", s)
			case !(r >= 0 && r <= 1):
				return nil, fmt.Errorf("%s is out of range; it is from 0 to 1", s)
			}
			return r, nil
		},
	}
}

// rules is a list of rules for endpoints.
func rules() kind { return list("rules", "a list of rules such as tcp://10.0.0.0/8", reach.CheckRule) }

// roleWords are those of conductor/access, and two for lists.
var roleWords = choice("query", "register", "metrics", "peer", "admin", "none", Auto)

// roles is a list of roles.
func roles() kind {
	return list("roles", "a list of roles", func(s string) error {
		_, err := roleWords.parse(s)
		return err
	})
}

// texts is a list of names.
func texts() kind { return list("names", "a list of names", func(string) error { return nil }) }

// list is a list of texts, separated by commas where it is one text. Space around an
// element is trimmed, empty elements are dropped.
func list(word, wants string, check func(string) error) kind {
	return kind{
		word: word, wants: wants, tags: []string{"!!str"}, list: true,
		parse: func(s string) (any, error) {
			var out []string
			for one := range strings.SplitSeq(s, ",") {
				if one = strings.TrimSpace(one); one == "" {
					continue
				}
				if err := check(one); err != nil {
					return nil, err
				}
				out = append(out, one)
			}
			return out, nil
		},
	}
}

// checkURL checks a base URL that paths are put behind.
func checkURL(text string) error {
	if err := checkExpanded(text); err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || !strings.HasPrefix(text, "http://") && !strings.HasPrefix(text, "https://") {
		return fmt.Errorf("%q is no URL; write http://host:port or https://host:port", text)
	}
	if err := checkURLHost(u); err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	if u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#") {
		return fmt.Errorf("%q has more than a path behind its host", text)
	}
	return nil
}

// checkURLHost checks the host of a URL that is connected to, and its port if it has one.
func checkURLHost(u *url.URL) error {
	if err := reach.CheckHost(u.Hostname()); err != nil || u.Port() == "" {
		return err
	}
	return reach.CheckPort(u.Port())
}

// count is a whole number of at most 31 bits.
func count() kind {
	return number("int", func(digits string) (any, error) {
		n, err := strconv.ParseInt(digits, 0, 32)
		return int(n), err
	})
}

// countOrAuto is a count, or auto.
func countOrAuto() kind {
	k := count()
	k.word += "|" + Auto
	k.wants += ", or auto"
	k.literal = Auto
	number := k.parse
	k.parse = func(s string) (any, error) {
		if s == Auto {
			return AutoCount, nil
		}
		return number(s)
	}
	return k
}

// seed is a whole number of 64 bits without a sign, or random.
func seed() kind {
	k := number("uint64", func(digits string) (any, error) {
		if strings.HasPrefix(digits, "-") {
			return nil, fmt.Errorf("%s is out of range; the least is 0", digits)
		}
		return strconv.ParseUint(digits, 0, 64)
	})
	decimal := k.parse
	k.tags = append(k.tags, "!!str")
	k.parse = func(s string) (any, error) {
		if strings.EqualFold(s, "random") {
			var seed [8]byte
			rand.Read(seed[:])
			return binary.LittleEndian.Uint64(seed[:]), nil
		}
		return decimal(s)
	}
	return k
}

// number is a whole number. It rejects a leading zero, which means octal to YAML 1.1
// and to C, and decimal to others.
func number(word string, read func(digits string) (any, error)) kind {
	return kind{
		word: word, wants: "a whole number", tags: []string{"!!int"},
		parse: func(s string) (any, error) {
			digits := strings.TrimPrefix(s, "+")
			if bare := strings.TrimPrefix(digits, "-"); len(bare) > 1 && bare[0] == '0' && bare[1] >= '0' && bare[1] <= '9' {
				return nil, fmt.Errorf("%s has a leading zero", s)
			}
			n, err := read(digits)
			switch {
			case errors.Is(err, strconv.ErrRange):
				return nil, fmt.Errorf("%s is out of range", s)
			case errors.Is(err, strconv.ErrSyntax):
				return nil, fmt.Errorf("%q is no whole number", s)
			}
			return n, err
		},
	}
}

// duration is a number with its unit, such as 1m30s.
func duration() kind {
	return kind{
		word: "duration", wants: `a duration such as "30s"`, tags: []string{"!!str", "!!int", "!!float"},
		parse: func(s string) (any, error) {
			if _, err := strconv.ParseFloat(s, 64); err == nil {
				return nil, fmt.Errorf("%s has no unit; write %q if seconds are meant", s, s+"s")
			}
			d, err := time.ParseDuration(s)
			if err != nil {
				return nil, fmt.Errorf("%q is no duration; write a number and ms, s, m or h, such as \"30s\"", s)
			}
			return d, nil
		},
	}
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

var sizeText = regexp.MustCompile(`^([0-9]+) ?([A-Za-z]*)$`)

// size is a number of bytes, bare or with a binary unit such as 16MiB.
func size() kind {
	return kind{word: "bytes", wants: `a size such as "16MiB"`, tags: []string{"!!str", "!!int"}, parse: parseSize}
}

// AutoSize is the value of a size that the server chooses by the memory it has.
const AutoSize int64 = -1

// sizeOrAuto is a size, or auto.
func sizeOrAuto() kind {
	k := size()
	k.word, k.wants = "bytes|"+Auto, `a size such as "16MiB", or auto`
	k.parse = func(s string) (any, error) {
		if strings.EqualFold(s, Auto) {
			return AutoSize, nil
		}
		return parseSize(s)
	}
	return k
}

// showSize renders bytes in the largest unit that divides them.
func showSize(n int64) string {
	for _, u := range sizeUnits {
		if n != 0 && n%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// Size is a flag whose value is a number of bytes, written as sizes of settings are.
type Size int64

// Set reads the text of the flag.
func (s *Size) Set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	*s = Size(n.(int64))
	return nil
}

func (s *Size) String() string { return showSize(int64(*s)) }

// Type is the word that the help shows.
func (s *Size) Type() string { return size().word }

func parseSize(s string) (any, error) {
	m := sizeText.FindStringSubmatch(s)
	if m == nil {
		return nil, fmt.Errorf("%q is no size; write a number of bytes or one with KiB, MiB or GiB", s)
	}
	unit := int64(1)
	if m[2] != "" {
		unit = 0
		for _, u := range sizeUnits {
			if u.name == m[2] {
				unit = u.bytes
			}
		}
		if unit == 0 {
			return nil, fmt.Errorf("%q has an unknown unit; B, KiB, MiB and GiB are known", s)
		}
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return nil, fmt.Errorf("%q is more bytes than fit 63 bits", s)
	}
	return n * unit, nil
}

// showDuration is Duration.String without the zero parts: 2m, not 2m0s.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
