package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Names of engines, media and models come from those who publish or register, and so do parts of messages. Commands print
// them through the functions here, so that no name moves the cursor of a terminal, ends a line or begins a column.

// Printable returns text with all but printable characters and spaces as escapes of Go.
func Printable(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text { // bytes that are not UTF-8 are U+FFFD
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// printable formats a value as fmt does, and then makes it Printable.
type printable struct{ of any }

// Format implements fmt.Formatter.
func (p printable) Format(f fmt.State, verb rune) {
	io.WriteString(f, Printable(fmt.Sprintf(fmt.FormatString(f, verb), p.of)))
}

// printables wraps what is printed, except numbers, which may be widths.
func printables(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if out[i] = a; !isInt(a) {
			out[i] = printable{a}
		}
	}
	return out
}

func isInt(a any) bool { _, is := a.(int); return is }

// Sprintf is that of fmt with each value Printable. The format is a constant, and stays as it is.
func Sprintf(format string, args ...any) string { return fmt.Sprintf(format, printables(args)...) }

// Fprintf is that of fmt with each value Printable. The format is a constant, and stays as it is.
func Fprintf(out io.Writer, format string, args ...any) {
	fmt.Fprintf(out, format, printables(args)...)
}

// Fprintln is that of fmt with each value Printable.
func Fprintln(out io.Writer, args ...any) { fmt.Fprintln(out, printables(args)...) }

// printableLines is Printable for text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// PrintJSON prints v, indented.
func PrintJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	return PrintRaw(out, b.Bytes())
}

// PrintRaw prints valid JSON. Characters that would act on a terminal are in its strings alone, where an escape means the same.
func PrintRaw(out io.Writer, text []byte) error {
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}
