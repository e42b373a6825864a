package conductor

import (
	"math"
	"reflect"
	"testing"
	"time"

	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestRegistrationFields holds that a journal keeps every field of a
// registration, those of later versions too.
func TestRegistrationFields(t *testing.T) {
	given := Registration{Endpoint: "tcp://h:1", ReplayEndpoint: "tcp://h:2", Type: TypeMooncake, Copies: CopiesCount, Reports: ReportsFull, Owned: OwnedDrop, Clear: ClearDevice, Sequence: sequenceShared}
	v := reflect.ValueOf(&given).Elem()
	for i := range v.NumField() {
		switch v.Type().Field(i).Name {
		case "Events", "CapacityBlocks", "Approximate":
			continue // they go with none of the others
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
		case HashProfile:
			p, err := hash.NewProfile(HashProfile{
				Strategy: hash.StrategyVLLM, Algorithm: hash.AlgorithmXXHash, PythonHashSeed: "00", IndexProjection: hash.ProjectionLow64, ExtraKeys: hash.ExtraKeysTagged,
			})
			must.Succeed(t, err)
			f.Set(reflect.ValueOf(p.Settings()))
		default:
			t.Fatalf("nobody decided how %s is kept", v.Type().Field(i).Name)
		}
	}
	pool, engine := given, given
	pool.Copies, pool.Reports, pool.Owned, pool.Clear, pool.SnapshotEndpoint = "", "", "", "", ""
	pool.Aliases = nil
	engine.Type, engine.Serves = TypeVLLM, nil
	for static, given := range map[bool]Registration{false: pool, true: engine} {
		if got, s, err := registrationOf(given.appendFields(nil, static)); err != nil || !reflect.DeepEqual(got, given) || s != static {
			t.Errorf("%+v %t %v\nwant %+v", got, s, err, given)
		}
	}
	unpublished := Registration{Type: TypeStandard, Model: "m", Instance: "i", Tenant: DefaultTenant, BlockSize: 1, TTL: time.Minute, Lora: "l", Aliases: []string{"n"},
		Events: EventsNone, CapacityBlocks: math.MaxInt32, Approximate: ApproximateCount}
	if got, _, err := registrationOf(unpublished.Fields()); err != nil || !reflect.DeepEqual(got, unpublished) {
		t.Errorf("%+v %v\nwant %+v", got, err, unpublished)
	}
	least := Registration{Endpoint: "tcp://h:1", Type: TypeMooncake, Model: "m", Instance: "i", Tenant: DefaultTenant, BlockSize: 1}
	if got, _, err := registrationOf(least.Fields()); err != nil || !reflect.DeepEqual(got, least) {
		t.Errorf("%+v %v\nwant %+v", got, err, least)
	}
}

// TestJournalSettings holds that a journal keeps what decides an index.
func TestJournalSettings(t *testing.T) {
	given := Options{HashSeed: 1<<64 - 1, Copies: index.CopySet, MaxBytes: 1 << 40, MaxBytesTotal: 1 << 41, MaxContexts: 7, MaxTokenID: 1<<32 - 1, KeepClientHashes: true}
	given.Stream.StaleAfter = 90 * time.Second
	var got Options
	if err := got.adopt(given.TapeSettings()); err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%+v %v\nwant %+v", got, err, given)
	}
}
