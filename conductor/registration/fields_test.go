package registration

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFieldsAreWhole requires that the table has every field of a Registration: one that it lacks is lost by each
// restart.
func TestFieldsAreWhole(t *testing.T) {
	t.Parallel()
	var full Registration
	fill(reflect.ValueOf(&full).Elem(), 1)
	full.Profile.RootDigest = "" // it follows from the seed
	got, err := ReadFields(full.Fields())
	if err != nil || !reflect.DeepEqual(got, full) {
		t.Errorf("%v: %+v becomes %+v", err, full, got)
	}
}

// TestDiffSeesEveryField requires that a registration which differs in one field is another source, but for its key and
// what a running source takes over.
func TestDiffSeesEveryField(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[Registration]()
	for i := range typ.NumField() {
		var one, other Registration
		fill(reflect.ValueOf(&one).Elem(), 1)
		fill(reflect.ValueOf(&other).Elem(), 1)
		if fill(reflect.ValueOf(&other).Elem().Field(i), 2); typ.Field(i).Name == "Sequence" {
			other.Sequence = SequenceShared // any other word means that the publisher numbers each topic
		}
		field, have, got := one.Diff(&other, CopiesCount)
		switch typ.Field(i).Name {
		case "Instance", "Tenant", "Rank", "Aliases", "Adapters", "Address", "Role":
			if field != "" {
				t.Errorf("%s counts as %s", typ.Field(i).Name, field)
			}
		default:
			if field == "" || have == got {
				t.Errorf("%s does not count", typ.Field(i).Name)
			}
		}
	}
}

// TestValidateReturnsEveryFault requires that one call names all fields that are wrong.
func TestValidateReturnsEveryFault(t *testing.T) {
	t.Parallel()
	f := func(r Registration, want ...string) {
		t.Helper()
		var got []string
		for _, bad := range r.Validate(false) {
			got = append(got, bad.Field+" "+bad.Reason)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
	good := Registration{Endpoint: "tcp://h:1", Type: "vllm", Model: "m", Instance: "a", BlockSize: 16}
	f(good)
	f(Registration{}, "endpoint missing", "type missing", "modelname missing", "instance_id missing", "block_size out_of_range")
	bad := good
	bad.Endpoint, bad.ReplayEndpoint, bad.SnapshotEndpoint, bad.Lora = "h:1", "h:2", "h:3", strings.Repeat("l", 257)
	bad.TTL, bad.MediaTTL = 1, map[string]time.Duration{"GPU": 1}
	bad.Aliases, bad.Serves, bad.Copies, bad.Sequence = []string{"b", ""}, []string{"b"}, "many", "some"
	bad.Profile.Strategy = "none"
	f(bad, "lora_name out_of_range", "aliases invalid_value", "ttl.GPU out_of_range", "ttl out_of_range", "serves invalid_value",
		"copies invalid_value", "sequence invalid_value", "hash_profile.algorithm invalid_value", "endpoint invalid_value",
		"replay_endpoint invalid_value", "snapshot_endpoint invalid_value")
}

// fill sets everything to values that depend on n.
func fill(v reflect.Value, n int) {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		v.SetInt(int64(time.Duration(n) * time.Minute))
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprintf("text %d", n))
	case v.Kind() == reflect.Int:
		v.SetInt(int64(n))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.ValueOf([]string{fmt.Sprintf("a %d", n), fmt.Sprintf("b %d", n)}))
	case v.Kind() == reflect.Map:
		v.Set(reflect.ValueOf(map[string]time.Duration{"GPU": time.Duration(n) * time.Second}))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}
