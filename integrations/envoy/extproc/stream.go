package extproc

import (
	"context"
	"errors"
	"strings"
	"time"

	extfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/conductor/integrations/envoy/pick"
)

// maxPiece is the most of a body in one message of FULL_DUPLEX_STREAMED. Envoy asks for at most 64 KiB; the rest is for the framing.
const maxPiece = 62 << 10

// maxID is the longest x-request-id that is used: clients can set it, and it is kept as long as reports are. Envoy's have 36 characters.
const maxID = 128

// modelWithin is how much of a body that is too large is read, to find the model in it.
const modelWithin = 64 << 10

// stream is one HTTP request and its response. Its methods are called by one goroutine.
type stream struct {
	server *Server
	rpc    extproc.ExternalProcessor_ProcessServer

	started                   bool // the first message has come
	requestMode, responseMode extfilter.ProcessingMode_BodySendMode

	request   pick.Request
	seen      bool     // the request's headers have come
	foreign   []string // names of own headers that came from outside
	explain   bool     // the client has asked for, and gets, the reason
	upgrade   bool     // the client wants another protocol, such as WebSocket
	held      []byte   // of the body, until the engine is chosen
	tooLarge  bool     // the body is beyond a bound
	bodyEnded bool     // its last piece has come
	picked    bool     // Pick was called
	flight    pick.Flight

	firstToken bool
	usage      usageScanner
}

// handle answers one message. An error ends the stream.
func (x *stream) handle(m *extproc.ProcessingRequest) error {
	if !x.started {
		x.started = true
		x.requestMode, x.responseMode = extfilter.ProcessingMode_FULL_DUPLEX_STREAMED, extfilter.ProcessingMode_FULL_DUPLEX_STREAMED
		if c := m.GetProtocolConfig(); c != nil {
			x.requestMode, x.responseMode = c.GetRequestBodyMode(), c.GetResponseBodyMode()
		}
		switch x.requestMode {
		case extfilter.ProcessingMode_FULL_DUPLEX_STREAMED, extfilter.ProcessingMode_BUFFERED, extfilter.ProcessingMode_NONE:
		default:
			return status.Errorf(codes.Unimplemented,
				"request_body_mode %s: set FULL_DUPLEX_STREAMED or BUFFERED in the filter's processing_mode", x.requestMode)
		}
		if x.responseMode == extfilter.ProcessingMode_GRPC {
			return status.Error(codes.Unimplemented,
				"response_body_mode GRPC: set FULL_DUPLEX_STREAMED or STREAMED in the filter's processing_mode")
		}
	}
	if m.GetObservabilityMode() {
		return status.Error(codes.Unimplemented, "observability_mode: without an answer no engine is chosen; turn it off in the filter")
	}
	switch r := m.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(m, r.RequestHeaders)
	case *extproc.ProcessingRequest_RequestBody:
		return x.requestBody(r.RequestBody)
	case *extproc.ProcessingRequest_RequestTrailers:
		return x.requestTrailers()
	case *extproc.ProcessingRequest_ResponseHeaders:
		return x.responseHeaders(m, r.ResponseHeaders)
	case *extproc.ProcessingRequest_ResponseBody:
		return x.responseBody(r.ResponseBody)
	case *extproc.ProcessingRequest_ResponseTrailers:
		return x.rpc.Send(&extproc.ProcessingResponse{
			Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}},
		})
	default:
		return status.Error(codes.InvalidArgument, "a message with no part of a request or response")
	}
}

func (x *stream) requestHeaders(m *extproc.ProcessingRequest, h *extproc.HttpHeaders) error {
	if x.seen {
		return status.Error(codes.InvalidArgument, "headers of a request for the second time")
	}
	x.seen = true
	for _, header := range h.GetHeaders().GetHeaders() {
		name, value := strings.ToLower(header.GetKey()), headerValue(header)
		switch name {
		case ":method":
			x.request.Method = value
		case ":path":
			x.request.Path = value
		case requestIDHeader:
			x.request.ID = value
		case "traceparent":
			x.request.Traceparent = value
		case DebugHeader:
			x.explain = x.server.o.Debug && value == "1"
		case "upgrade":
			x.upgrade = x.upgrade || value != ""
		}
		if x.server.own[name] {
			x.foreign = append(x.foreign, name)
		}
	}
	if x.request.ID == "" || len(x.request.ID) > maxID {
		x.request.ID = newID()
	}
	x.request.Eligible = subsetOf(m.GetMetadataContext())
	if x.request.Eligible != nil && len(x.request.Eligible) == 0 {
		return x.refuse(&pick.Refusal{Status: 503, Message: "the gateway allows no endpoint for this request"})
	}

	switch {
	case h.GetEndOfStream() || x.requestMode == extfilter.ProcessingMode_NONE:
		return x.pickAtHeaders()
	case x.requestMode == extfilter.ProcessingMode_FULL_DUPLEX_STREAMED && (x.upgrade || x.request.Method == "CONNECT"):
		return x.pickAtHeaders() // its client sends nothing more until it has an answer
	case x.requestMode == extfilter.ProcessingMode_FULL_DUPLEX_STREAMED:
		return nil
	default:
		// The endpoint comes with the answer to the body. What only the picker may set goes now, so that it is gone too if
		// the picker dies in between.
		return x.replyToHeaders(nil)
	}
}

// pickAtHeaders chooses the engine of a request whose body does not come, or comes too late.
func (x *stream) pickAtHeaders() error {
	if err := x.pick(); err != nil {
		return err
	}
	return x.replyToHeaders(x.flight.Choice())
}

func (x *stream) requestBody(b *extproc.HttpBody) error {
	if !x.seen {
		return status.Error(codes.InvalidArgument,
			"the body of a request came before its headers: set request_header_mode SEND in the filter's processing_mode")
	}
	if x.bodyEnded {
		return nil // a data plane that sends the last piece twice would have it sent on twice
	}
	x.bodyEnded = b.GetEndOfStream()
	if x.requestMode == extfilter.ProcessingMode_FULL_DUPLEX_STREAMED {
		if x.picked {
			return x.sendPieces(b.GetBody(), x.bodyEnded, requestPiece)
		}
		x.hold(b.GetBody())
		if !x.bodyEnded && !x.tooLarge {
			return nil
		}
		return x.pickAndRelease(x.bodyEnded)
	}
	if x.picked {
		return x.replyToBody(nil)
	}
	x.hold(b.GetBody())
	if err := x.pick(); err != nil {
		return err
	}
	x.release()
	return x.replyToBody(x.flight.Choice())
}

func (x *stream) requestTrailers() error {
	if !x.seen {
		return status.Error(codes.InvalidArgument, "the trailers of a request came before its headers")
	}
	reply := &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}},
	}
	switch {
	case x.picked:
	case x.requestMode == extfilter.ProcessingMode_FULL_DUPLEX_STREAMED:
		if err := x.pickAndRelease(false); err != nil {
			return err
		}
	default:
		// Headers and trailers without a body between: the headers are answered, so that the metadata alone names the engine.
		if err := x.pick(); err != nil {
			return err
		}
		reply.DynamicMetadata = endpointMetadata(x.flight.Choice())
	}
	return x.rpc.Send(reply)
}

// hold keeps a piece of the body, or sets tooLarge if a bound forbids it. The piece is kept in either case, because it has yet to be
// passed on.
func (x *stream) hold(piece []byte) {
	total := x.server.held.Add(int64(len(piece)))
	if x.held == nil {
		x.held = piece
	} else {
		x.held = append(x.held, piece...)
	}
	if len(x.held) > x.server.o.MaxBody || total > x.server.o.MaxHeld {
		x.tooLarge = true
	}
}

// release forgets the body that was held.
func (x *stream) release() {
	x.server.held.Add(-int64(len(x.held)))
	x.held, x.request.Body = nil, nil
}

// pickAndRelease chooses the engine of a request in FULL_DUPLEX_STREAMED, and sends the endpoint and what was held of the body.
func (x *stream) pickAndRelease(last bool) error {
	if err := x.pickAtHeaders(); err != nil {
		return err
	}
	body := x.held
	x.release()
	if len(body) == 0 && !last {
		return nil
	}
	return x.sendPieces(body, last, requestPiece)
}

// pick chooses the engine. If there is none it answers the client, and returns errRefused.
func (x *stream) pick() error {
	x.picked = true
	r := &x.request
	if r.Body = x.held; x.tooLarge {
		x.server.metrics.unread.Inc()
		r.Body = x.held[:min(len(x.held), modelWithin)]
	}
	start := time.Now()
	logged := x.server.logDue(start)
	r.Explain = x.explain || logged

	// Envoy's own span is in the metadata of the stream; the header of the request names the span of its client.
	ctx := x.rpc.Context()
	if v := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(v) > 0 {
		r.Traceparent = v[0]
	}
	carrier := propagation.MapCarrier{"traceparent": r.Traceparent}
	ctx, span := x.server.o.Tracer.Start(propagation.TraceContext{}.Extract(ctx, carrier), "pick")
	defer span.End()
	if span.SpanContext().IsValid() {
		propagation.TraceContext{}.Inject(ctx, carrier)
		r.Traceparent = carrier["traceparent"]
	}

	flight, err := x.server.picker.Pick(ctx, r)
	took := time.Since(start)
	x.server.metrics.pickTimes.Observe(took.Seconds())
	x.server.metrics.requests.WithLabelValues(outcomeOf(ctx, err)).Inc()
	if err != nil {
		span.SetStatus(otelcodes.Error, err.Error())
		if logged {
			x.server.o.Log.Info().Str("request", r.ID).Str("path", r.Path).Dur("took_ms", took).Err(err).Msg("no engine chosen")
		}
		return x.answerError(ctx, err)
	}
	x.flight = flight
	c := flight.Choice()
	if len(c.Endpoints) == 0 {
		panic("BUG: the picker chose no endpoint")
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.StringSlice("conductor.endpoints", c.Endpoints), attribute.Int("http.request.body.size", len(r.Body)))
	}
	if logged {
		x.server.o.Log.Info().Str("request", r.ID).Str("path", r.Path).Str("endpoint", c.Endpoints[0]).Str("why", c.Why).
			Dur("took_ms", took).Msg("engine chosen; at most one such line a second")
	}
	return nil
}

// answerError answers the client of a request that no engine was chosen for. An error that is no Refusal ends the stream with an error
// instead, so that the data plane does what it is set to do when the picker fails.
func (x *stream) answerError(ctx context.Context, err error) error {
	var refusal *pick.Refusal
	switch {
	case errors.As(err, &refusal):
		return x.refuse(refusal)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Errorf(codes.Internal, "choosing an engine: %v", err)
	}
}

func (x *stream) refuse(r *pick.Refusal) error {
	if err := x.rpc.Send(&extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: refusalResponse(r)},
	}); err != nil {
		return err
	}
	return errRefused
}

// replyToHeaders answers the request's headers, with where it goes if that is known.
func (x *stream) replyToHeaders(c *pick.Choice) error {
	return x.rpc.Send(&extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{
			Response: &extproc.CommonResponse{HeaderMutation: requestMutation(c, x.foreign)},
		}},
		DynamicMetadata: endpointMetadata(c),
	})
}

// replyToBody leaves a piece of the request's body as it is, and says where the request goes if c is not nil.
func (x *stream) replyToBody(c *pick.Choice) error {
	body := &extproc.BodyResponse{}
	if c != nil {
		body.Response = &extproc.CommonResponse{HeaderMutation: requestMutation(c, x.foreign)}
	}
	return x.rpc.Send(&extproc.ProcessingResponse{
		Response:        &extproc.ProcessingResponse_RequestBody{RequestBody: body},
		DynamicMetadata: endpointMetadata(c),
	})
}

func (x *stream) responseHeaders(m *extproc.ProcessingRequest, h *extproc.HttpHeaders) error {
	reply := &extproc.HeadersResponse{}
	if x.flight != nil {
		x.flight.Answered(servedOf(m.GetMetadataContext()), statusOf(h))
		if x.responseMode == extfilter.ProcessingMode_NONE {
			x.sawFirstToken() // nothing that comes later is seen
		}
		if why := x.flight.Choice().Why; x.explain && why != "" {
			reply.Response = &extproc.CommonResponse{HeaderMutation: &extproc.HeaderMutation{
				SetHeaders: setHeader(nil, WhyHeader, printable(why)),
			}}
		}
	}
	return x.rpc.Send(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: reply}})
}

func (x *stream) responseBody(b *extproc.HttpBody) error {
	if x.flight != nil && len(b.GetBody()) > 0 {
		x.sawFirstToken()
		x.usage.write(b.GetBody())
	}
	if x.responseMode == extfilter.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.sendPieces(b.GetBody(), b.GetEndOfStream(), responsePiece)
	}
	return x.rpc.Send(responsePiece(&extproc.BodyResponse{}))
}

func (x *stream) sawFirstToken() {
	if !x.firstToken {
		x.firstToken = true
		x.flight.FirstToken()
	}
}

// end tells the flight that the request is over.
func (x *stream) end() {
	x.release()
	if x.flight == nil {
		return
	}
	defer x.flight.End()
	if prompt, cached, ok := x.usage.tokens(); ok {
		x.flight.Usage(prompt, cached)
	}
}

// sendPieces passes a body on in FULL_DUPLEX_STREAMED, in messages that the data plane accepts. last says that nothing follows it.
func (x *stream) sendPieces(body []byte, last bool, wrap func(*extproc.BodyResponse) *extproc.ProcessingResponse) error {
	for {
		piece := body[:min(len(body), maxPiece)]
		body = body[len(piece):]
		if err := x.rpc.Send(wrap(&extproc.BodyResponse{Response: &extproc.CommonResponse{
			BodyMutation: &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{
				StreamedResponse: &extproc.StreamedBodyResponse{Body: piece, EndOfStream: last && len(body) == 0},
			}},
		}})); err != nil {
			return err
		}
		if len(body) == 0 {
			return nil
		}
	}
}

func requestPiece(b *extproc.BodyResponse) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: b}}
}

func responsePiece(b *extproc.BodyResponse) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: b}}
}

// endpointMetadata returns the dynamic metadata that names the engine, nil for a nil c.
func endpointMetadata(c *pick.Choice) *structpb.Struct {
	if c == nil {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		metadataNS: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			EndpointHeader: structpb.NewStringValue(strings.Join(c.Endpoints, ",")),
		}}),
	}}
}
