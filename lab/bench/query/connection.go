package query

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
)

// connection is one keep-alive connection of HTTP/1.1. Requests are rendered before they
// are sent, so a request costs the client little.
type connection struct {
	c    net.Conn
	r    *bufio.Reader
	body bytes.Buffer
}

func dialServer(address string) (asker, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return &connection{c: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

func (c *connection) close() { c.c.Close() }

// sendRequest sends a request and returns the status and the body of its answer, which is
// valid until the next.
func (c *connection) sendRequest(r *request) (status int, body []byte, err error) {
	if _, err := c.c.Write(r.whole); err != nil {
		// A server that does not want the rest has said so.
		if status, body, unread := c.readAnswer(); unread == nil {
			return status, body, nil
		}
		return 0, nil, fmt.Errorf("cannot send a request: %w", err)
	}
	return c.readAnswer()
}

func (c *connection) readAnswer() (status int, body []byte, err error) {
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot read an answer: %w", err)
	}
	return readAnswer(resp, &c.body)
}

// readAnswer reads the body of an answer into buf.
func readAnswer(resp *http.Response, buf *bytes.Buffer) (status int, body []byte, err error) {
	defer resp.Body.Close()
	buf.Reset()
	if _, err := buf.ReadFrom(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("an answer is cut off: %w", err)
	}
	return resp.StatusCode, buf.Bytes(), nil
}

// multiplexed is one connection of HTTP/2 without TLS. It costs more of the client
// than connection does.
type multiplexed struct {
	transport *http.Transport
	url       string
	codec     string
	body      bytes.Buffer
}

func dialHTTP2(address, path, codec string) asker {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &multiplexed{transport: &http.Transport{Protocols: protocols, DisableCompression: true}, url: "http://" + address + path,
		codec: codec}
}

func (m *multiplexed) close() { m.transport.CloseIdleConnections() }

func (m *multiplexed) sendRequest(r *request) (status int, body []byte, err error) {
	req, err := newRequest(m.url, m.codec, r.body)
	if err != nil {
		return 0, nil, err
	}
	resp, err := m.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot send a request by HTTP/2 without TLS, which the server may not speak: %w", err)
	}
	return readAnswer(resp, &m.body)
}

func newRequest(url, codec string, body []byte) (*http.Request, error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err == nil {
		req.Header = http.Header{"Content-Type": {contentType(codec)}, "User-Agent": nil}
	}
	return req, err
}

// renderRequest returns a whole request as HTTP/1.1 has it; the body is its end.
func renderRequest(url, codec string, body []byte) ([]byte, error) {
	req, err := newRequest(url, codec, body)
	if err != nil {
		return nil, err
	}
	var whole bytes.Buffer
	err = req.Write(&whole)
	return whole.Bytes(), err
}
