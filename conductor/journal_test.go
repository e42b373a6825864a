package conductor

import (
	"math"
	"reflect"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestRegistrationFields holds that a journal keeps every field of a
// registration, those of later versions too.
func TestRegistrationFields(t *testing.T) {
	given := registration.Registration{Endpoint: "tcp://h:1", ReplayEndpoint: "tcp://h:2", Type: registration.TypeMooncake,
		Copies: registration.CopiesCount, Reports: registration.ReportsFull, Drafter: registration.DrafterDrops,
		Owned: registration.OwnedDrop, Clear: registration.ClearDevice,
		Sequence: registration.SequenceShared, Role: "prefill"}
	v := reflect.ValueOf(&given).Elem()
	for i := range v.NumField() {
		switch v.Type().Field(i).Name {
		case "Events", "CapacityBlocks", "Approximate":
			continue // they go with none of the others
		case "Address":
			v.Field(i).SetString("http://h:3")
		}
		switch f := v.Field(i); f.Interface().(type) {
		case string:
			if f.Len() == 0 {
				f.SetString(v.Type().Field(i).Name + " = ü")
			}
		case int:
			f.SetInt(int64(i) + 1)
		case []string:
			f.Set(reflect.ValueOf([]string{"a", "ü = b"}))
		case time.Duration:
			f.SetInt(int64(i) * 1_000_000_007)
		case map[string]time.Duration:
			f.Set(reflect.ValueOf(map[string]time.Duration{"DISK": time.Hour, "Ü = B": 0}))
		case registration.HashProfile:
			p, err := hash.NewProfile(registration.HashProfile{
				Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmXXHash, PythonHashSeed: "00", IndexProjection: hash.ProjectionLow64,
				ExtraKeys: hash.ExtraKeysTagged,
			})
			must.Succeed(t, err)
			f.Set(reflect.ValueOf(p.Settings()))
		default:
			t.Fatalf("nobody decided how %s is kept", v.Type().Field(i).Name)
		}
	}
	pool, engine := given, given
	pool.Copies, pool.Reports, pool.Drafter, pool.Owned, pool.Clear, pool.SnapshotEndpoint = "", "", "", "", "", ""
	pool.Aliases, pool.Adapters, pool.Address, pool.Role = nil, nil, "", ""
	engine.Type, engine.Serves = registration.TypeVLLM, nil
	for static, given := range map[bool]registration.Registration{false: pool, true: engine} {
		if got, s, err := registration.FromFields(given.AppendFields(nil, static)); err != nil || !reflect.DeepEqual(got, given) ||
			s != static {
			t.Errorf("%+v %t %v\nwant %+v", got, s, err, given)
		}
	}
	unpublished := registration.Registration{Type: registration.TypeStandard, Model: "m", Instance: "i", Tenant: scope.DefaultTenant,
		BlockSize: 1, TTL: time.Minute, Lora: "l", Aliases: []string{"n"},
		Events: registration.EventsNone, CapacityBlocks: math.MaxInt32, Approximate: registration.ApproximateCount}
	if got, _, err := registration.FromFields(unpublished.Fields()); err != nil || !reflect.DeepEqual(got, unpublished) {
		t.Errorf("%+v %v\nwant %+v", got, err, unpublished)
	}
	least := registration.Registration{Endpoint: "tcp://h:1", Type: registration.TypeMooncake, Model: "m", Instance: "i",
		Tenant: scope.DefaultTenant, BlockSize: 1}
	if got, _, err := registration.FromFields(least.Fields()); err != nil || !reflect.DeepEqual(got, least) {
		t.Errorf("%+v %v\nwant %+v", got, err, least)
	}
}
