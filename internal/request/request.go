// Package request sends single requests to a server.
package request

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// maxAnswer bounds an answer in bytes. The list of 10,000 sources has some 10 MB.
const maxAnswer = 256 << 20

// Do sends a request, in JSON if it has a body, and returns the status and the body of
// the answer, which has at most maxAnswer bytes.
func Do(ctx context.Context, c *http.Client, method, url string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if answer, err = readAnswer(resp.Body, maxAnswer); err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, answer, nil
}

// readAnswer reads an answer of at most so many bytes.
func readAnswer(body io.Reader, most int64) ([]byte, error) {
	answer, err := io.ReadAll(io.LimitReader(body, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer is cut off: %w", err)
	case int64(len(answer)) > most:
		return nil, fmt.Errorf("the answer has more than %d bytes", most)
	}
	return answer, nil
}
