package conductor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestRegistrationIsBounded: every text of a registration is in lists and metrics of the server,
// so none may be of any length.
func TestRegistrationIsBounded(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	defer c.Close()
	plain := func() *registration.Registration {
		return &registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "i", BlockSize: 16}
	}
	f := func(field string, most int, set func(r *registration.Registration, text string)) {
		t.Helper()
		r, text := plain(), strings.Repeat("x", most)
		if strings.HasSuffix(field, "endpoint") {
			text = "ipc:///" + text
		}
		set(r, text+"x")
		var bad *invalid.FieldError
		if err := c.Register(*r, ingest.RegisterOptions{}); !errors.As(err, &bad) || bad.Field != field || bad.Reason != "out_of_range" {
			t.Errorf("%s of %d bytes: %v", field, len(text)+1, err)
		}
		if strings.HasSuffix(field, "endpoint") {
			return // a path as long as that is no socket's
		}
		set(r, text)
		must.Succeed(t, c.Register(*r, ingest.RegisterOptions{Replace: true}))
	}
	f("endpoint", 1024, func(r *registration.Registration, text string) { r.Endpoint = text })
	f("replay_endpoint", 1024, func(r *registration.Registration, text string) { r.ReplayEndpoint = text })
	f("modelname", 256, func(r *registration.Registration, text string) { r.Model = text })
	f("lora_name", 256, func(r *registration.Registration, text string) { r.Lora = text })
	f("tenant_id", 256, func(r *registration.Registration, text string) { r.Tenant = text })
	f("instance_id", 256, func(r *registration.Registration, text string) { r.Instance = text })
	f("additionalsalt", 256, func(r *registration.Registration, text string) { r.Salt = text })
	f("serves", 256, func(r *registration.Registration, text string) {
		r.Type, r.Serves = registration.TypeMooncake, []string{text}
	})
	r := plain()
	r.Type, r.Serves = registration.TypeMooncake, make([]string, 4097)
	if err := c.Register(*r, ingest.RegisterOptions{}); err == nil {
		t.Error("a pool serves 4,097 instances")
	}
}

// TestNamesThatMakeOneTopic registers sources of a bound socket, whose names may have an @. Where two pairs of names make one topic,
// the second is refused, because nothing would tell whose the messages are.
func TestNamesThatMakeOneTopic(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	defer c.Close()
	register := func(instance, model, tenant string) error {
		return c.Register(registration.Registration{Endpoint: "bind:tcp://*:5557", Type: registration.TypeVLLM, Instance: instance,
			Model: model, Tenant: tenant, BlockSize: 16}, ingest.RegisterOptions{})
	}
	must.Succeed(t, register("p@3", "m@main", ""))
	must.Succeed(t, register("p@3", "m@main", "")) // the same
	must.Succeed(t, register("p@4", "m@main", ""))
	must.Succeed(t, register("p", "3@m@main", "acme")) // a tenant may not learn of others
	var conflict *registration.ConflictError
	for _, names := range [][2]string{{"p", "3@m@main"}, {"p@3@m", "main"}} {
		if err := register(names[0], names[1], ""); !errors.As(err, &conflict) || conflict.Field != "instance_id" ||
			!strings.Contains(err.Error(), `the topic "kv@p@3@m@main" is that of instance_id "p@3" and modelname "m@main"`) {
			t.Errorf("%q: %v", names, err)
		}
	}
	if _, err := c.Unregister(registration.Key{Instance: "p@3"}); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, register("p", "3@m@main", ""))
}
