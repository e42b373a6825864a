package status

import (
	"cmp"
	"reflect"
	"strings"
	"testing"

	"example.com/conductor/conductor/registration"
)

// TestServiceShowsRegistration holds that the row of a source has all fields of its registration.
func TestServiceShowsRegistration(t *testing.T) {
	shown := map[string]bool{"Profile": true} // as HashProfile
	row := reflect.TypeFor[Service]()
	for i := range row.NumField() {
		of, name := row.Field(i).Tag.Get("of"), row.Field(i).Name
		if of != "-" {
			name = strings.TrimPrefix(cmp.Or(of, name), "Registration.")
		}
		shown[name] = true
	}
	fields := reflect.TypeFor[registration.Registration]()
	for i := range fields.NumField() {
		if name := fields.Field(i).Name; !shown[name] {
			t.Errorf("a registration has the field %s, and Service does not show it", name)
		}
	}
}
