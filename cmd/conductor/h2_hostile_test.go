package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"example.com/conductor/internal/must"
)

// TestAnswersThatNobodyTakesAreBounded asks over HTTP/2 and gives no window for the answers: at most half of limits.memory waits for
// it, and other requests are refused at once.
func TestAnswersThatNobodyTakesAreBounded(t *testing.T) {
	t.Parallel()
	p, _ := grpcProcess(t, "limits: {memory: 1MiB}\n")
	frames, conn := newRawFrames(t, strings.TrimPrefix(p.url, "http://"), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	const requests = 100
	for i := range uint32(requests) {
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/services"}, {Name: ":authority", Value: "localhost"}} {
			frames.encoder.WriteField(f)
		}
		must.Succeed(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: frames.headers.Bytes(),
			EndStream: true, EndHeaders: true}))
		frames.headers.Reset()
	}
	must.Succeed(t, frames.out.Flush())
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	waiting := 0
	for answered := 0; answered < requests; {
		f, err := frames.ReadFrame()
		must.Succeed(t, err)
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if answered++; f.PseudoValue("status") == "200" && !f.StreamEnded() {
				waiting++
			}
		case *http2.RSTStreamFrame:
			answered++
		}
	}
	if waiting == 0 || waiting > 1<<20/2/(24<<10) {
		t.Errorf("%d answers of %d wait", waiting, requests)
	}
}
