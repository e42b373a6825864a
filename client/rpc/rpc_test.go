package rpc

import (
	"maps"
	"slices"
	"testing"

	pb "example.com/conductor/api/kvconductor/v1"
)

// TestPoolsOfRows gives each row the pools that serve it, as answers over HTTP do.
func TestPoolsOfRows(t *testing.T) {
	rows := rowsOf(&pb.QueryResponse{
		Rows:  []*pb.Row{{InstanceId: "a"}, {InstanceId: "b"}},
		Pools: []*pb.Source{{Key: "node", Serves: []string{"b"}}, {Key: "store"}},
	})
	f := func(row int, want ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(rows[row].Pools)); !slices.Equal(got, want) {
			t.Errorf("row %d has the pools %q, want %q", row, got, want)
		}
	}
	f(0, "store")
	f(1, "node", "store")
}
