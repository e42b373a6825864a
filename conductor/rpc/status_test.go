package rpc

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
)

// TestStatusOfUnserved: the status names the replica that answers.
func TestStatusOfUnserved(t *testing.T) {
	st, _ := status.FromError(statusOf(&conductor.UnservedError{
		Shard: scope.Shard{Tenant: "a", Model: "m"}, Serving: []conductor.ReplicaAddress{{ID: "r", URL: "http://r"}},
	}))
	info, ok := st.Details()[0].(*errdetails.ErrorInfo)
	if st.Code() != codes.Unavailable || !ok || info.Reason != "UNSERVED" || info.Metadata["replica"] != "r" ||
		info.Metadata["url"] != "http://r" {
		t.Errorf("%v %v", st, info)
	}
	if e := errorOf(&conductor.UnservedError{}); e.Reason != "unserved" {
		t.Errorf("%v", e)
	}
}
