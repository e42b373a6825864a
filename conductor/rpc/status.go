package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/server"
)

// statusOf returns an error as gRPC sends it. Bad input is INVALID_ARGUMENT with a
// google.rpc.BadRequest that names the field, and the element as field[index].
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	var (
		field    *invalid.FieldError
		unserved *conductor.UnservedError
	)
	switch {
	case errors.As(err, &field):
		return detailed(codes.InvalidArgument, field.Message, violation(field))
	case errors.As(err, new(*match.UnknownNameError)), errors.As(err, new(*match.UnknownAnswerError)):
		return statusOfError(errorOf(err))
	case errors.Is(err, ingest.ErrNotFound):
		return status.Error(codes.NotFound, err.Error())
	case errors.As(err, &unserved):
		return elsewhere(unserved, err)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, conductor.ErrForbidden):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, server.ErrBusy), errors.Is(err, body.ErrMemory), errors.Is(err, errTooManyWatches):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, ingest.ErrClosed), errors.Is(err, errStopping):
		return status.Error(codes.Unavailable, err.Error())
	}
	switch access.Refused(err) {
	case http.StatusUnauthorized:
		return status.Error(codes.Unauthenticated, err.Error())
	case http.StatusForbidden:
		return status.Error(codes.PermissionDenied, err.Error())
	case http.StatusTooManyRequests:
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// violation returns the detail of bad input.
func violation(e *invalid.FieldError) *errdetails.BadRequest {
	name := protoField(e.Field)
	if e.Index >= 0 {
		name = fmt.Sprintf("%s[%d]", name, e.Index)
	}
	return &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: name, Description: e.Message, Reason: e.Reason}},
	}
}

// statusOfError returns the status of a call that ends with the error of its one report, which is its first
// detail. A target that is not registered is NOT_FOUND.
func statusOfError(e *pb.Error) error {
	detail := protoadapt.MessageV1Of(e)
	switch e.Reason {
	case "not_found", match.UnknownModelReason, match.UnknownAnswerReason:
		return detailed(codes.NotFound, e.Message, detail)
	case "forbidden":
		return detailed(codes.PermissionDenied, e.Message, detail)
	case "internal":
		return detailed(codes.Internal, e.Message, detail)
	}
	field := &invalid.FieldError{Field: e.Field, Index: -1, Reason: e.Reason, Message: e.Message}
	if e.Index != nil {
		field.Index = int(*e.Index)
	}
	return detailed(codes.InvalidArgument, e.Message, detail, violation(field))
}

// detailed returns a status with details.
func detailed(code codes.Code, text string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, text).WithDetails(details...)
	if err != nil {
		panic("BUG: a status takes no details: " + err.Error())
	}
	return st.Err()
}

// elsewhere returns the status of a query that another replica answers: UNAVAILABLE with a
// google.rpc.ErrorInfo that names the replica. why wraps e.
func elsewhere(e *conductor.UnservedError, why error) error {
	info := &errdetails.ErrorInfo{Reason: reasonElsewhere, Domain: "conductor", Metadata: map[string]string{}}
	if len(e.Serving) > 0 {
		info.Metadata["replica"], info.Metadata["url"] = e.Serving[0].ID, e.Serving[0].URL
	}
	return detailed(codes.Unavailable, why.Error(), info)
}

// reasonElsewhere is the reason of an ErrorInfo.
const reasonElsewhere = "UNSERVED"

// isElsewhere reports whether elsewhere has made a status.
func isElsewhere(st *status.Status) bool {
	return slices.ContainsFunc(st.Details(), func(d any) bool {
		info, is := d.(*errdetails.ErrorInfo)
		return is && info.Reason == reasonElsewhere
	})
}

// protoField returns the name that a field of the Conductor dialect has in conductor.proto.
func protoField(name string) string {
	switch name {
	case "token_ids":
		return "tokens.ids"
	case "ttl":
		return "ttl_ms"
	}
	return name
}

// httpStatus returns the status of HTTP that says the same as a code, for the audit log.
func httpStatus(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.NotFound:
		return http.StatusNotFound
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Internal:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}
