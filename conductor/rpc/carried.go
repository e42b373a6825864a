package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
)

// A call that another replica carries is a request over HTTP. Its body is the message of the client.
// The body of the answer is frames:
//
//	0   | length, 4 bytes, big endian | message, as gRPC has it
//	128 | length                      | google.rpc.Status: the call ends with an error
//
// A call that the sender may make at another replica ends with a status of HTTP instead, unless it
// has begun to answer: 421 if this one does not serve the model.

const (
	messageFrame, statusFrame = 0, 128

	frameHeader = 5
	// mostFrame bounds a frame that is read, in bytes.
	mostFrame = 64 << 20
	// carriedType is the media type of the bodies.
	carriedType = "application/vnd.conductor.grpc"
)

// carried is a method that other replicas send calls of.
type carried struct {
	handler any
	unary   *grpc.MethodDesc // nil of a stream
	stream  *grpc.StreamDesc // nil of a unary method
}

// Carried answers calls that other replicas carry: POST /grpc/:service/:method. Its server has no
// Forwarder, so that no call is sent on twice.
func (s *Server) Carried(g *gin.Context) {
	method := "/" + g.Param("service") + "/" + g.Param("method")
	m, known := s.carried[method]
	if !known {
		sendRefusal(g, http.StatusNotFound, "not_found", "no such method: "+method)
		return
	}
	r := body.Get()
	defer r.Release()
	if err := r.Fill(g.Writer, g.Request, s.opts.MaxBody); err != nil {
		status, reason := server.Status(err)
		sendRefusal(g, status, reason, err.Error())
		return
	}
	ctx := stage.With(s.opts.Guard.Carried(g).With(g.Request.Context()), server.ClockOf(g))
	out := &carriedStream{ctx: grpc.NewContextWithServerTransportStream(ctx, transport(method)), g: g, in: r.Src, long: m.stream != nil}
	err := s.answer(m, method, out)
	if err == nil {
		return
	}
	st := status.Convert(err)
	if code := st.Code(); code != codes.InvalidArgument && code != codes.OutOfRange && code != codes.NotFound && !out.begun {
		status, reason := httpStatus(code), code.String()
		if isElsewhere(st) {
			status, reason = http.StatusMisdirectedRequest, "misdirected"
		}
		sendRefusal(g, status, reason, st.Message())
		return
	}
	text, err := proto.Marshal(st.Proto())
	if err != nil {
		panic("BUG: a status cannot be encoded: " + err.Error())
	}
	out.writeFrame(statusFrame, text) // a sender that is gone needs none
}

// answer lets the handler of a method answer one message.
func (s *Server) answer(m carried, method string, out *carriedStream) (err error) {
	if m.stream != nil {
		return s.stream(m.handler, out, &grpc.StreamServerInfo{FullMethod: method}, m.stream.Handler)
	}
	answer, err := m.unary.Handler(m.handler, out.ctx, out.RecvMsg, s.unary)
	if err != nil {
		return err
	}
	return out.SendMsg(answer)
}

// sendRefusal answers a call that the sender may make at another replica.
func sendRefusal(g *gin.Context, status int, reason, text string) {
	if status >= http.StatusInternalServerError {
		g.Header("Retry-After", "1") // seconds
	}
	g.JSON(status, gin.H{"error": text, "reason": reason})
}

// transport is the method of a call that gRPC does not carry.
type transport string

func (t transport) Method() string             { return string(t) }
func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SendHeader(metadata.MD) error { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

// isCarried reports whether another replica has sent a call on.
func isCarried(ctx context.Context) bool {
	_, is := grpc.ServerTransportStreamFromContext(ctx).(transport)
	return is
}

// carriedStream is a call with one message of the client. Each message of the server is sent at once.
// The handler alone uses it.
type carriedStream struct {
	ctx   context.Context
	g     *gin.Context
	in    []byte
	long  bool // the server may send several messages
	read  bool
	begun bool
}

func (c *carriedStream) Context() context.Context     { return c.ctx }
func (c *carriedStream) SetHeader(metadata.MD) error  { return nil }
func (c *carriedStream) SendHeader(metadata.MD) error { return nil }
func (c *carriedStream) SetTrailer(metadata.MD)       {}

// RecvMsg returns the message of the client once, then io.EOF.
func (c *carriedStream) RecvMsg(m any) error {
	if c.read {
		return io.EOF
	}
	c.read = true
	if err := proto.Unmarshal(c.in, m.(proto.Message)); err != nil {
		return status.Errorf(codes.Internal, "the message cannot be read: %v", err)
	}
	return nil
}

// SendMsg sends a message of the server.
func (c *carriedStream) SendMsg(m any) error {
	text, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return status.Errorf(codes.Internal, "the message cannot be encoded: %v", err)
	}
	return c.writeFrame(messageFrame, text)
}

func (c *carriedStream) writeFrame(kind byte, text []byte) error {
	if !c.begun {
		c.begun = true
		c.g.Header("Content-Type", carriedType)
		if !c.long { // there is one frame
			c.g.Header("Content-Length", strconv.Itoa(frameHeader+len(text)))
		}
		c.g.Status(http.StatusOK)
	}
	frame := make([]byte, frameHeader, frameHeader+len(text))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(text)))
	if _, err := c.g.Writer.Write(append(frame, text...)); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if c.long {
		c.g.Writer.Flush()
	}
	return nil
}

// readFrames passes the messages of a carried call to take, which may keep them. reserve takes memory for
// a frame before it is read. readFrames returns the error that the call ends with, nil for none, or
// forward.ErrReplicas if the answer is cut off.
func readFrames(from io.Reader, reserve func(bytes int64) error, take func(message []byte) error) error {
	for {
		var header [frameHeader]byte
		switch _, err := io.ReadFull(from, header[:]); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("%w: its answer is cut off: %w", forward.ErrReplicas, err)
		}
		size := int64(binary.BigEndian.Uint32(header[1:]))
		if size > mostFrame {
			return fmt.Errorf("%w: its answer is larger than %d bytes", forward.ErrReplicas, mostFrame)
		}
		if err := reserve(size); err != nil {
			return err
		}
		var text bytes.Buffer
		if n, err := io.Copy(&text, io.LimitReader(from, size)); err != nil || n < size {
			return fmt.Errorf("%w: its answer is cut off after %d of %d bytes: %w", forward.ErrReplicas, n, size,
				errors.Join(err, io.ErrUnexpectedEOF))
		}
		if header[0] == messageFrame {
			if err := take(text.Bytes()); err != nil {
				return err
			}
			continue
		}
		var st spb.Status
		if proto.Unmarshal(text.Bytes(), &st) != nil || st.Code == int32(codes.OK) {
			return fmt.Errorf("%w: its status cannot be read", forward.ErrReplicas)
		}
		return status.ErrorProto(&st)
	}
}
