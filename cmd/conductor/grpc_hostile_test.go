package main

import (
	"bufio"
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// rawFrames is a client of gRPC that keeps to no rule but the frames of HTTP/2.
type rawFrames struct {
	*http2.Framer
	t       *testing.T
	pending int // settings that the server has not acknowledged yet
	out     *bufio.Writer
	headers bytes.Buffer
	encoder *hpack.Encoder
}

func newRawFrames(t *testing.T, address string, settings ...http2.Setting) (*rawFrames, net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	r := &rawFrames{t: t, out: bufio.NewWriter(conn)}
	r.encoder = hpack.NewEncoder(&r.headers)
	r.out.WriteString(http2.ClientPreface)
	r.Framer = http2.NewFramer(r.out, conn)
	must.Succeed(t, r.WriteSettings(settings...))
	r.pending++
	return r, conn
}

// open begins a call; more are names and values of further headers.
func (r *rawFrames) open(stream uint32, method string, more ...string) {
	r.t.Helper()
	all := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost",
		"content-type", "application/grpc", "te", "trailers"}, more...)
	for i := 0; i < len(all); i += 2 {
		r.encoder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	must.Succeed(r.t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.headers.Bytes(), EndHeaders: true}))
	r.headers.Reset()
}

// settle waits until the server has taken all that was sent.
func (r *rawFrames) settle(conn net.Conn) {
	r.t.Helper()
	must.Succeed(r.t, r.WriteSettings())
	must.Succeed(r.t, r.out.Flush())
	conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	for r.pending++; r.pending > 0; {
		f, err := r.ReadFrame()
		must.Succeed(r.t, err)
		if settings, ok := f.(*http2.SettingsFrame); ok && settings.IsAck() {
			r.pending--
		}
	}
}

// TestGRPCHoldsNothingOfRefusedCalls makes calls whose time is over when they come, with as many headers as the server allows.
func TestGRPCHoldsNothingOfRefusedCalls(t *testing.T) {
	t.Parallel()
	p, address := grpcProcess(t, "limits: {memory: 64MiB}\n")
	before := resident(t, p)
	var many []string
	for range 300 {
		many = append(many, "x-a", "b")
	}
	frames, conn := newRawFrames(t, address)
	for round := range uint32(100) {
		for i := range uint32(100) {
			frames.open(round*200+2*i+1, "/grpc.health.v1.Health/Check", append([]string{"grpc-timeout", "1n"}, many...)...)
		}
		frames.settle(conn)
	}
	if grown := resident(t, p) - before; grown > 100<<20 && !payload.PoisonsReleased {
		t.Errorf("10,000 calls that the server refused took %d MiB", grown>>20)
	}
}

// TestGRPCHoldsNothingBehindARefusedMessage has clients that read no answers. They send many requests, then one that is too large, and
// then more data, which the server must not keep.
func TestGRPCHoldsNothingBehindARefusedMessage(t *testing.T) {
	t.Parallel()
	p, address := grpcProcess(t, "limits: {memory: 64MiB}\n")
	before := resident(t, p)
	frames, conn := newRawFrames(t, address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	const calls = 200
	chunk := make([]byte, 16<<10)
	for id := uint32(1); id < 2*calls; id += 2 {
		frames.open(id, pb.Conductor_RoutedStream_FullMethodName)
		must.Succeed(t, frames.WriteData(id, false, append(acknowledged(t, 40), 0, 0x7f, 0xff, 0xff, 0xff)))
		for range 1<<20/len(chunk) - 2 {
			must.Succeed(t, frames.WriteData(id, false, chunk))
		}
		frames.settle(conn)
	}
	if grown := resident(t, p) - before; grown > 100<<20 && !payload.PoisonsReleased {
		t.Errorf("%d calls with data behind a refused message took %d MiB", calls, grown>>20)
	}
	if _, text := get(p.url + "/metrics"); !strings.Contains(text, `conductor_grpc_messages_refused_total{reason="size"} 200`) {
		t.Error("no metric tells of the messages that are too large")
	}
}

// TestGRPCAnswersThatNobodyTakesAreBounded makes calls and gives no window for the answers: at most half of limits.memory waits for
// it, and other calls are refused at once. Once the answers are taken, there is room for as many calls again.
func TestGRPCAnswersThatNobodyTakesAreBounded(t *testing.T) {
	t.Parallel()
	_, address := grpcProcess(t, "limits: {memory: 1MiB}\n")
	frames, conn := newRawFrames(t, address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	stream := uint32(1)
	ask := func() (waiting int) {
		const calls = 100
		for range calls {
			frames.open(stream, "/grpc.health.v1.Health/Check")
			must.Succeed(t, frames.WriteData(stream, true, make([]byte, 5)))
			stream += 2
		}
		must.Succeed(t, frames.out.Flush())
		for answered := 0; answered < calls; {
			f, err := frames.ReadFrame()
			must.Succeed(t, err)
			if headers, ok := f.(*http2.MetaHeadersFrame); ok {
				if answered++; !headers.StreamEnded() {
					waiting++
				}
			}
		}
		return waiting
	}
	most := ask()
	if most == 0 || most > 1<<20/2/(24<<10) {
		t.Errorf("%d answers wait", most)
	}
	must.Succeed(t, frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
	must.Succeed(t, frames.out.Flush())
	for ended := 0; ended < most; {
		f, err := frames.ReadFrame()
		must.Succeed(t, err)
		if headers, ok := f.(*http2.MetaHeadersFrame); ok && headers.StreamEnded() {
			ended++
		}
	}
	must.Succeed(t, frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	if again := ask(); again != most {
		t.Errorf("%d answers wait after %d others have been taken", again, most)
	}
}

// TestGRPCAnswersBeforeARefusedMessage sends good requests and one that is too large at once: the good ones are done.
func TestGRPCAnswersBeforeARefusedMessage(t *testing.T) {
	t.Parallel()
	_, address := grpcProcess(t, "limits: {memory: 64MiB}\n")
	for _, prefix := range [][]byte{{0, 0x7f, 0xff, 0xff, 0xff}, {0, 0x03, 0, 0, 0}} { // too large, and more than there is memory
		frames, conn := newRawFrames(t, address)
		frames.open(1, pb.Conductor_RoutedStream_FullMethodName)
		must.Succeed(t, frames.WriteData(1, false, append(acknowledged(t, 20), prefix...)))
		must.Succeed(t, frames.out.Flush())
		conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
		var got []byte
		status := ""
		headers := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
			if f.Name == "grpc-status" {
				status = f.Value
			}
		})
		for status == "" {
			f, err := frames.ReadFrame()
			must.Succeed(t, err)
			switch f := f.(type) {
			case *http2.DataFrame:
				got = append(got, f.Data()...)
			case *http2.HeadersFrame:
				headers.Write(f.HeaderBlockFragment())
			}
		}
		answers := 0
		for ; len(got) >= 5; answers++ {
			got = got[5+int(got[3])<<8+int(got[4]):]
		}
		if answers != 20 || status != "8" {
			t.Errorf("before %x: %d requests were answered, want 20; the call ended with %q", prefix, answers, status)
		}
	}
}

// acknowledged returns requests of a RoutedStream that are answered each.
func acknowledged(t *testing.T, n int) (all []byte) {
	text, err := proto.Marshal(&pb.RoutedRequest{Acknowledge: true})
	must.Succeed(t, err)
	one := append([]byte{0, 0, 0, 0, byte(len(text))}, text...)
	return bytes.Repeat(one, n)
}
