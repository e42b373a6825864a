package query

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// connection is one keep-alive connection of HTTP/1.1. It knows of the protocol what
// answers to these requests need, and costs little beside what it asks.
type connection struct {
	c    net.Conn
	r    *bufio.Reader
	body []byte
}

func dial(address string) (asker, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return &connection{c: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

func (c *connection) close() { c.c.Close() }

// rendered is a whole request as it is written.
func rendered(address, path, codec string, body []byte) []byte {
	head := fmt.Appendf(make([]byte, 0, 256+len(body)), "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
		path, address, contentType(codec), len(body))
	return append(head, body...)
}

// ask sends a request and returns the status and the body of its answer, which is
// valid until the next.
func (c *connection) ask(r *request) (status int, body []byte, err error) {
	if _, err := c.c.Write(r.whole); err != nil {
		// A server that does not want the rest has said so.
		if status, body, unread := c.read(); unread == nil {
			return status, body, nil
		}
		return 0, nil, fmt.Errorf("cannot send a request: %w", err)
	}
	return c.read()
}

var (
	contentLength = []byte("content-length")
	chunkedName   = []byte("transfer-encoding")
	chunkedValue  = []byte("chunked")
)

func (c *connection) read() (status int, body []byte, err error) {
	line, err := c.line()
	if err != nil {
		return 0, nil, err
	}
	version, rest, _ := bytes.Cut(line, []byte(" "))
	if !bytes.HasPrefix(version, []byte("HTTP/1.1")) || len(rest) < 3 {
		return 0, nil, fmt.Errorf("an answer begins with %q", line)
	}
	if status, err = strconv.Atoi(string(rest[:3])); err != nil {
		return 0, nil, fmt.Errorf("an answer begins with %q", line)
	}
	length, chunked := -1, false
	for {
		if line, err = c.line(); err != nil {
			return 0, nil, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, contentLength):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return 0, nil, fmt.Errorf("an answer has the length %q", value)
			}
		case bytes.EqualFold(name, chunkedName):
			chunked = bytes.EqualFold(value, chunkedValue)
		}
	}
	c.body = c.body[:0]
	switch {
	case chunked:
		err = c.readChunks()
	case length >= 0:
		err = c.readN(length)
	default:
		err = errors.New("an answer has no length")
	}
	return status, c.body, err
}

// readChunks reads a body that is sent in chunks; trailers there are none.
func (c *connection) readChunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return fmt.Errorf("a chunk has the length %q", line)
		}
		if err := c.readN(int(n)); err != nil {
			return err
		}
		if line, err = c.line(); err != nil || len(line) > 0 {
			return errors.Join(err, fmt.Errorf("a chunk ends with %q", line))
		}
		if n == 0 {
			return nil
		}
	}
}

// readN appends n bytes to the body.
func (c *connection) readN(n int) error {
	at := len(c.body)
	if cap(c.body) < at+n {
		c.body = append(make([]byte, 0, 2*(at+n)), c.body...)
	}
	c.body = c.body[:at+n]
	if _, err := io.ReadFull(c.r, c.body[at:]); err != nil {
		return fmt.Errorf("an answer is cut off: %w", err)
	}
	return nil
}

// line reads up to the next line feed, without it.
func (c *connection) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("an answer is cut off: %w", err)
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}
