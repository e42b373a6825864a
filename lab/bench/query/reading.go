package query

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
)

// Paths of the handlers that the server's is compared with.
const (
	pathQuery = "/query"
	pathHash  = "/query_by_hash"
	pathRead  = "/read"

	pathRouted     = "/routed"
	pathCandidates = "/candidates"
)

// newHandler returns what the server is compared with: the baseline, and one that does the
// least a handler of net/http can.
func (s *Compared) newHandler(k *conductor.Conductor, maxBody int64) (http.Handler, error) {
	read, err := s.newReader(k, maxBody)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(pathQuery, newBaseline(k, maxBody))
	mux.Handle(pathRead, read)
	return mux, nil
}

// newReader returns a handler that takes a body, looks at every byte once, and sends the
// answer to the first prompt, made beforehand.
func (s *Compared) newReader(k *conductor.Conductor, maxBody int64) (http.Handler, error) {
	ans := k.Query(match.Query{Model: model, BlockSize: s.BlockSize, Tokens: s.appendPrompt(nil, 0)})
	answer, err := json.Marshal(plainAnswer(&ans))
	if err != nil {
		return nil, fmt.Errorf("cannot encode an answer: %w", err)
	}
	length := []string{strconv.Itoa(len(answer))}
	bodies := sync.Pool{New: func() any { return new([]byte) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 || r.ContentLength > maxBody {
			http.Error(w, "a length is required", http.StatusLengthRequired)
			return
		}
		buf := bodies.Get().(*[]byte)
		defer bodies.Put(buf)
		if n := int(r.ContentLength); cap(*buf) < n {
			*buf = make([]byte, n)
		} else {
			*buf = (*buf)[:n]
		}
		if _, err := io.ReadFull(r.Body, *buf); err != nil || sumBytes(*buf) == 0 {
			http.Error(w, "a body is required", http.StatusBadRequest)
			return
		}
		w.Header()["Content-Length"] = length
		w.Write(answer)
	}), nil
}

// sumBytes adds up bytes. It is zero of nothing and of zeros.
func sumBytes(b []byte) (total uint64) {
	for ; len(b) >= 8; b = b[8:] {
		total |= binary.LittleEndian.Uint64(b)
	}
	for _, c := range b {
		total |= uint64(c)
	}
	return total
}
