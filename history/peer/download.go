package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.com/conductor/redact"
)

const (
	// resumptions bounds how often a download goes on behind a broken connection.
	resumptions = 5
	// resumePause is the pause before that.
	resumePause = 200 * time.Millisecond
)

// download reads a snapshot of a peer. Where the peer can do that, it goes on behind the
// bytes it has when the connection breaks.
type download struct {
	ctx     context.Context
	client  *http.Client
	me      string // see Header
	url     string
	accept  string
	resumes bool

	body    io.ReadCloser
	id      string // of the snapshot, "" if the peer names none
	at      int64  // bytes read
	size    int64  // below 0 if it is not known
	resumed int
}

// open asks for the snapshot, or for the rest of one.
func (d *download) open(from string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(d.ctx, http.MethodGet, d.url+from, nil)
	if err != nil {
		return nil, redact.Error(err)
	}
	req.Header.Set("Accept", d.accept)
	req.Header.Set(Header, d.me)
	if d.resumes {
		// Compression costs more than it saves: hashes are random.
		req.Header.Set("Accept-Encoding", "identity")
	}
	if from != "" {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.at))
	}
	res, err := d.client.Do(req)
	if err != nil {
		return nil, redact.Error(err)
	}
	if from == "" {
		d.id, d.size = strings.Trim(res.Header.Get("ETag"), `"`), res.ContentLength
	}
	d.body = res.Body
	return res, nil
}

func (d *download) close() {
	if d.body != nil {
		d.body.Close()
	}
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	for {
		n, err := d.body.Read(p)
		d.at += int64(n)
		if n > 0 || err == nil {
			return n, nil
		}
		whole := err == io.EOF && (d.size < 0 || d.at >= d.size)
		if whole || !d.resume() {
			return 0, err
		}
	}
}

// resume asks for the rest. It reports false if the rest cannot be had.
func (d *download) resume() bool {
	if !d.resumes || d.id == "" || d.resumed == resumptions || d.ctx.Err() != nil {
		return false
	}
	d.resumed++
	select {
	case <-time.After(resumePause):
	case <-d.ctx.Done():
		return false
	}
	d.close()
	first := "?"
	if strings.Contains(d.url, "?") {
		first = "&"
	}
	res, err := d.open(first + "id=" + url.QueryEscape(d.id))
	if err != nil {
		d.body = http.NoBody
		return d.resume()
	}
	return res.StatusCode == http.StatusPartialContent
}
