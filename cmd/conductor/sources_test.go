package main

import (
	"reflect"
	"testing"
	"time"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/config"
)

// TestConfiguredSourceIsRegistered holds that every field of a configured source is registered.
func TestConfiguredSourceIsRegistered(t *testing.T) {
	t.Parallel()
	f := func(at []int) {
		t.Helper()
		var s config.Source
		switch v := reflect.ValueOf(&s).Elem().FieldByIndex(at); v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Slice:
			v.Set(reflect.ValueOf([]string{"x"}))
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]time.Duration{"x": 7}))
		default:
			v.SetInt(7)
		}
		if reflect.DeepEqual(targetOf(s), discovery.Target{Static: true}) {
			t.Errorf("%+v is registered without it", s)
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config.Source]()) {
		if field.Type.Kind() != reflect.Struct {
			f(field.Index)
			continue
		}
		for i := range field.Type.NumField() {
			f(append(field.Index, i))
		}
	}
}
