package query

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

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
	return &multiplexed{transport: &http.Transport{Protocols: protocols, DisableCompression: true}, url: "http://" + address + path, codec: codec}
}

func (m *multiplexed) close() { m.transport.CloseIdleConnections() }

func (m *multiplexed) ask(r *request) (status int, body []byte, err error) {
	req, err := http.NewRequest(http.MethodPost, m.url, bytes.NewReader(r.body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType(m.codec))
	resp, err := m.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot send a request by HTTP/2 without TLS, which the server may not speak: %w", err)
	}
	defer resp.Body.Close()
	m.body.Reset()
	if _, err := io.Copy(&m.body, resp.Body); err != nil {
		return 0, nil, fmt.Errorf("an answer is cut off: %w", err)
	}
	return resp.StatusCode, m.body.Bytes(), nil
}
