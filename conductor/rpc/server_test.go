package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPanicGivesSlotBack holds that a broken invariant costs one call, not a slot of all queries.
func TestPanicGivesPlaceBack(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	_, err := r.server.unary(ctx, prompt(1), &grpc.UnaryServerInfo{FullMethod: "/kvconductor.v1.Conductor/Query"},
		func(context.Context, any) (any, error) { panic("BUG: a test") })
	if status.Code(err) != codes.Internal {
		t.Errorf("the call ends with %v", err)
	}
	if st := r.slots.Stats(); st.Inside != 0 {
		t.Errorf("%d slots are taken", st.Inside)
	}
	if _, err := r.client.Query(ctx, prompt(1)); err != nil {
		t.Errorf("the next call: %v", err)
	}
}
