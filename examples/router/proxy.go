package router

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
)

// maxBody bounds a request in bytes.
const maxBody = 16 << 20

// ServeHTTP forwards a completion whose prompt is a list of token ids, as vLLM and SGLang take it, to
// the worker that Choose returns. A router that takes text has its tokenizer here.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	var completion struct {
		Prompt []uint32 `json:"prompt"`
	}
	if err := json.Unmarshal(body, &completion); err != nil {
		http.Error(w, "the prompt must be a list of token ids: "+err.Error(), http.StatusBadRequest)
		return
	}
	worker, end := r.Choose(req.Context(), completion.Prompt)
	defer end(false) // no answer came: the engine cannot be reached, or the client has gone away
	to := r.Workers[worker]
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to.URL)
			p.SetXForwarded()
			p.Out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(to.Rank)) // vLLM's
		},
		// Engines send the headers of a stream with its first token, or refuse.
		ModifyResponse: func(answer *http.Response) error { end(answer.StatusCode < 300); return nil },
		FlushInterval:  -1,
	}).ServeHTTP(w, req)
}
