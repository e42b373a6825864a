package server

import (
	"net/http"
	"time"
)

// pieceSize is how much a client must read within the patience, in bytes. Most answers
// are smaller.
const pieceSize = 64 << 10

// paced aborts an answer if the client does not read a piece of it within patience.
// net/http bounds whole answers, but a dump may need minutes. In HTTP/2 net/http bounds
// writes to a connection, but not how long a stream waits for its client. A deadline that
// a handler sets holds if it is the earlier one.
func paced(h http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p *pacedWriter
		shared := r.ProtoMajor > 1
		conn := joinedConnOf(r.Context())
		if shared || conn == nil {
			p = new(pacedWriter)
		} else { // requests come one after the other
			p = &conn.paced
			defer func() { *p = pacedWriter{} }()
		}
		*p = pacedWriter{ResponseWriter: w, patience: patience, shared: shared}
		if p.deadline, _ = w.(deadliner); p.deadline != nil && !shared {
			p.deadline.SetWriteDeadline(time.Time{}) // that of the answer before
		}
		if !shared {
			p.conn = conn
		}
		h.ServeHTTP(p, r)
	})
}

type deadliner interface{ SetWriteDeadline(time.Time) error }

// pacedWriter gives every piece of an answer its time.
type pacedWriter struct {
	http.ResponseWriter
	deadline deadliner // nil where there is none
	patience time.Duration
	conn     *joinedConn // nil where pieces are not joined
	own      time.Time   // the handler's deadline, zero for none
	shared   bool        // with other requests: a deadline that passes ends the stream, written to or not
}

// Unwrap is for http.ResponseController.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *pacedWriter) Write(b []byte) (n int, err error) {
	for {
		p.beginPiece()
		piece := b[:min(len(b), pieceSize)]
		wrote, err := p.sendPiece(piece)
		n, b = n+wrote, b[len(piece):]
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

// sendPiece writes a piece of an answer to the connection at once.
func (p *pacedWriter) sendPiece(piece []byte) (n int, err error) {
	if p.conn == nil {
		return p.ResponseWriter.Write(piece)
	}
	p.conn.holdWrites()
	defer func() {
		if failed := p.conn.sendHeld(); err == nil {
			err = failed
		}
	}()
	return p.ResponseWriter.Write(piece)
}

// Flush implements http.Flusher.
func (p *pacedWriter) Flush() {
	if f, ok := p.ResponseWriter.(http.Flusher); ok {
		p.beginPiece()
		if f.Flush(); p.shared && p.deadline != nil {
			p.deadline.SetWriteDeadline(time.Time{}) // the next piece may come later
		}
	}
}

// SetWriteDeadline is for http.ResponseController.
func (p *pacedWriter) SetWriteDeadline(at time.Time) error {
	if p.deadline == nil {
		return http.ErrNotSupported
	}
	p.own = at
	return p.beginPiece()
}

// beginPiece starts the time that the client has for a piece.
func (p *pacedWriter) beginPiece() error {
	if p.deadline == nil {
		return nil
	}
	at := time.Now().Add(p.patience)
	if !p.own.IsZero() && p.own.Before(at) {
		at = p.own
	}
	return p.deadline.SetWriteDeadline(at)
}
