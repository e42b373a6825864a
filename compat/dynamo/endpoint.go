package dynamo

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"example.com/conductor/redact"
)

// checkEndpoint reports what Dynamo's indexer finds wrong with a ZMQ address, in
// its words; clients compare them. It is a check of form alone: inproc://, port 0
// and the host * pass, whether or not anything can be reached there.
func checkEndpoint(endpoint string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("invalid ZMQ endpoint `%s`: %s", redact.URL(endpoint), fmt.Sprintf(format, args...))
	}
	scheme, address, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return bad("missing scheme")
	case address == "":
		return bad("missing address")
	case scheme == "ipc" || scheme == "inproc":
		return nil
	case scheme != "tcp":
		return bad("unsupported scheme `%s`", scheme)
	}
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return bad("missing TCP port")
	}
	host, port := address[:colon], address[colon+1:]
	switch {
	case host == "":
		return bad("missing TCP host")
	case host[0] == '[' && host[len(host)-1] != ']':
		return bad("missing closing `]`")
	case host[0] != '[' && strings.Contains(host, ":"):
		return bad("missing TCP port") // an IPv6 address without brackets
	}
	if _, err := parseUint(port, 16); err != nil {
		return bad("invalid TCP port: %v", err)
	}
	return nil
}

// checkReplayEndpoint is checkEndpoint for the address replays are asked for at.
func checkReplayEndpoint(endpoint string) error {
	if err := checkEndpoint(endpoint); err != nil {
		return fmt.Errorf("invalid replay endpoint `%s`: %w", redact.URL(endpoint), err)
	}
	return nil
}

// What Dynamo's indexer says of text that is no number.
var (
	errEmptyNumber = errors.New("cannot parse integer from empty string")
	errDigit       = errors.New("invalid digit found in string")
	errTooLarge    = errors.New("number too large to fit in target type")
)

// parseUint reads a decimal number of the given bits, which may have a plus sign.
func parseUint(s string, bits int) (uint64, error) {
	if s == "" {
		return 0, errEmptyNumber
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "+"), 10, bits)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errTooLarge
	case err != nil:
		return 0, errDigit
	}
	return n, nil
}
