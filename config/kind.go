package config

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
	"example.com/conductor/spelling"
)

// AutoCount is a number that is not set: a bound that follows another one.
const AutoCount = math.MinInt32

// A kind is how a value is written. The same text means the same in a file, in the environment and in a flag.
type kind struct {
	word    string   // what usage texts call it
	wants   string   // completes "must be …"
	tags    []string // YAML tags that a file may use for it
	parse   func(string) (any, error)
	words   []string // the words, for a text that is one of a few
	literal string   // a word that a file may write for it, although texts are none of its tags; "" for none
	list    bool     // a []string; a file may write a list for it
}

// textKinds are the kinds of texts and of lists of texts, by the tag kind of their field.
var textKinds = map[string]kind{
	"":          textKind("string", "text", checkNothing),
	"filled":    textKind("string", "text", checkFilled),
	"header":    textKind("string", "the name of an HTTP header", checkHeader),
	"url":       textKind("url", "a URL", checkURLOrNone),
	"store":     textKind("url", "a URL", checkStoreURL),
	"names":     listKind("names", "a list of names", checkNothing),
	"urls":      listKind("urls", "a list of URLs", reach.CheckURL),
	"addresses": listKind("addresses", "a list of host:port", checkRemoteAddress),
	"hosts":     listKind("names", "a list of host names", checkHostName),
	"rules":     listKind("rules", "a list of rules such as tcp://10.0.0.0/8", reach.CheckRule),
	"roles":     listKind("roles", "a list of roles", checkRole),
	"dialect":   dialectKind,
}

var dialectKind = wordKind(Conductor, ConductorMsgpack, ConductorJSONV2, Dynamo, GRPC)

// kindOf returns the kind of a struct's field, the zero kind for a struct.
func kindOf(f reflect.StructField) (k kind) {
	auto, hasAuto := any(nil), f.Tag.Get("auto") != ""
	switch reflect.Zero(f.Type).Interface().(type) {
	case []string:
		k = textKinds[cmp.Or(f.Tag.Get("kind"), "names")]
	case string:
		if words, ok := f.Tag.Lookup("words"); ok {
			return wordKind(strings.Split(words, "|")...)
		}
		k = textKinds[f.Tag.Get("kind")]
	case []Listener:
		k = kind{word: "address=dialect", parse: parseListeners}
	case bool:
		k = boolKind()
	case time.Duration:
		k = durationKind()
	case int:
		k, auto = countKind(), AutoCount
	case int64:
		k, auto = sizeKind(), AutoSize
	case uint64:
		k = seedKind()
	case float64:
		k = ratioKind()
	}
	if least := reflect.New(f.Type).Elem(); least.CanInt() {
		if text, ok := f.Tag.Lookup("min"); ok {
			least.Set(reflect.ValueOf(mustParse(k, text)))
		}
		number := k.parse
		k.parse = func(s string) (any, error) {
			v, err := number(s)
			if err == nil && reflect.ValueOf(v).Int() < least.Int() {
				return nil, fmt.Errorf("%s is too small; the least is %s", formatValue(v), formatValue(least.Interface()))
			}
			return v, err
		}
	}
	if hasAuto {
		number := k.parse
		k.word, k.wants, k.literal = k.word+"|"+Auto, k.wants+", or "+Auto, Auto
		k.parse = func(s string) (any, error) {
			if strings.EqualFold(s, Auto) {
				return auto, nil
			}
			return number(s)
		}
	}
	return k
}

// formatValue renders a value of any kind as text that its kind reads.
func formatValue(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return formatDuration(v)
	case int64:
		return formatSize(v)
	case int:
		if v == AutoCount {
			return Auto
		}
	case []string:
		return strings.Join(v, ",")
	case []Listener:
		var out []string
		for _, one := range v {
			out = append(out, one.Address+"="+one.Dialect)
		}
		return strings.Join(out, ",")
	}
	return fmt.Sprint(v)
}

// textKind is any text that passes the check. A file must quote what YAML would read as a number.
func textKind(word, wants string, check func(string) error) kind {
	return kind{word: word, wants: wants, tags: []string{"!!str"}, parse: func(s string) (any, error) {
		return s, check(s)
	}}
}

// listKind is a list of texts, separated by commas where it is one text. Space around an element is trimmed,
// empty elements are dropped.
func listKind(word, wants string, check func(string) error) kind {
	return kind{word: word, wants: wants, tags: []string{"!!str"}, list: true, parse: func(s string) (any, error) {
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
	}}
}

// parseListeners reads listeners written ADDRESS=DIALECT, separated by commas. ADDRESS alone means the Conductor dialect.
// The error has a line for each bad one.
func parseListeners(texts string) (any, error) {
	var list []Listener
	var errs []error
	for text := range strings.SplitSeq(texts, ",") {
		address, dialect, given := strings.Cut(strings.TrimSpace(text), "=")
		one := Listener{strings.TrimSpace(address), Conductor}
		if _, err := checkAddress(one.Address); err != nil {
			errs = append(errs, err)
		}
		if given {
			v, err := dialectKind.parse(strings.TrimSpace(dialect))
			if err != nil {
				errs = append(errs, fmt.Errorf("%q: dialect %s", redact.Text(text), err))
				continue
			}
			one.Dialect = v.(string)
		}
		list = append(list, one)
	}
	return list, errors.Join(errs...)
}

// wordKind is one of a few words, in any case.
func wordKind(words ...string) kind {
	k := kind{word: strings.Join(words, "|"), wants: "one of " + strings.Join(words, ", "), tags: []string{"!!str"}, words: words}
	if len(words) == 1 {
		k.wants = words[0]
	}
	k.parse = func(s string) (any, error) {
		for _, w := range words {
			if strings.EqualFold(w, s) {
				return w, nil
			}
		}
		if len(words) == 1 {
			return nil, fmt.Errorf("%q is not %s, the only word for it", redact.Text(s), words[0])
		}
		return nil, fmt.Errorf("%q is none of %s%s", redact.Text(s), strings.Join(words, ", "), spelling.DidYouMean(s, words))
	}
	return k
}

// boolKind is true or false, in the words that people use for them.
func boolKind() kind {
	return kind{word: "bool", wants: "true or false", tags: []string{"!!bool", "!!str", "!!int"}, parse: func(s string) (any, error) {
		switch strings.ToLower(s) {
		case "true", "yes", "on", "1":
			return true, nil
		case "false", "no", "off", "0":
			return false, nil
		}
		return nil, fmt.Errorf("%q is neither true nor false", redact.Text(s))
	}}
}

// ratioKind is a number from 0 to 1.
func ratioKind() kind {
	return kind{word: "ratio", wants: "a number from 0 to 1", tags: []string{"!!float", "!!int"}, parse: func(s string) (any, error) {
		r, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is no number", redact.Text(s))
		case !(r >= 0 && r <= 1):
			return nil, fmt.Errorf("%s is out of range; it is from 0 to 1", s)
		}
		return r, nil
	}}
}

// countKind is a whole number of at most 31 bits.
func countKind() kind {
	return numberKind("int", func(digits string) (any, error) {
		n, err := strconv.ParseInt(digits, 0, 32)
		return int(n), err
	})
}

// seedKind is a whole number of 64 bits without a sign, or random.
func seedKind() kind {
	k := numberKind("uint64", func(digits string) (any, error) {
		if strings.HasPrefix(digits, "-") {
			return nil, fmt.Errorf("%s is out of range; the least is 0", digits)
		}
		return strconv.ParseUint(digits, 0, 64)
	})
	number := k.parse
	k.tags = append(k.tags, "!!str")
	k.parse = func(s string) (any, error) {
		if strings.EqualFold(s, "random") {
			var seed [8]byte
			rand.Read(seed[:])
			return binary.LittleEndian.Uint64(seed[:]), nil
		}
		return number(s)
	}
	return k
}

// numberKind is a whole number that read takes from its digits. A leading zero is refused, because it means
// octal to YAML 1.1 and to C, and decimal to others.
func numberKind(word string, read func(digits string) (any, error)) kind {
	return kind{word: word, wants: "a whole number", tags: []string{"!!int"}, parse: func(s string) (any, error) {
		digits := strings.TrimPrefix(s, "+")
		if bare := strings.TrimPrefix(digits, "-"); len(bare) > 1 && bare[0] == '0' && bare[1] >= '0' && bare[1] <= '9' {
			return nil, fmt.Errorf("%s has a leading zero", s)
		}
		n, err := read(digits)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("%s is out of range", s)
		case errors.Is(err, strconv.ErrSyntax):
			return nil, fmt.Errorf("%q is no whole number", redact.Text(s))
		}
		return n, err
	}}
}

// durationKind is a number with its unit, such as 1m30s.
func durationKind() kind {
	tags := []string{"!!str", "!!int", "!!float"} // numbers have a better error than their tag
	return kind{word: "duration", wants: `a duration such as "30s"`, tags: tags, parse: func(s string) (any, error) {
		if _, err := strconv.ParseFloat(s, 64); err == nil {
			return nil, fmt.Errorf("%s has no unit; write %q if seconds are meant", s, s+"s")
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return nil, fmt.Errorf("%q is no duration; write a number and ms, s, m or h, such as \"30s\"", redact.Text(s))
		}
		return d, nil
	}}
}

// formatDuration is Duration.String without the zero parts: 2m, not 2m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// AutoSize is the value of a size that the server chooses by the memory it has.
const AutoSize int64 = -1

var (
	sizeText  = regexp.MustCompile(`^([0-9]+) ?([A-Za-z]*)$`)
	sizeUnits = []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}
)

// sizeKind is a number of bytes, bare or with a binary unit such as 16MiB.
func sizeKind() kind {
	return kind{word: "bytes", wants: `a size such as "16MiB"`, tags: []string{"!!str", "!!int"}, parse: func(s string) (any, error) {
		m := sizeText.FindStringSubmatch(s)
		if m == nil {
			return nil, fmt.Errorf("%q is no size; write a number of bytes or one with KiB, MiB or GiB", redact.Text(s))
		}
		for _, unit := range sizeUnits {
			if unit.name != m[2] {
				continue
			}
			n, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil || n > math.MaxInt64/unit.bytes {
				return nil, fmt.Errorf("%q is more bytes than fit 63 bits", redact.Text(s))
			}
			return n * unit.bytes, nil
		}
		return nil, fmt.Errorf("%q has an unknown unit; B, KiB, MiB and GiB are known", redact.Text(s))
	}}
}

// formatSize renders bytes in the largest unit that divides them.
func formatSize(n int64) string {
	if n == AutoSize {
		return Auto
	}
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
	n, err := sizeKind().parse(text)
	if err != nil {
		return err
	}
	*s = Size(n.(int64))
	return nil
}

// String returns the size in the largest unit that divides it.
func (s *Size) String() string { return formatSize(int64(*s)) }

// Type is the word that the help of the flag shows.
func (s *Size) Type() string { return sizeKind().word }
