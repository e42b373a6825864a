// Package request sends single requests to a server.
package request

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// Do sends a request, in JSON if it has a body, and returns the status and the body of
// the answer.
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
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("the answer is cut off: %w", err)
	}
	return resp.StatusCode, answer, nil
}
