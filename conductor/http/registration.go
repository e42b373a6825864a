package http

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
)

// What a body may say; fields by other names are ignored.
var (
	keyFields          = body.Of("instance_id", "tenant_id", "dp_rank")
	registrationFields = shapeOfRegistrations()
)

// shapeOfRegistrations is the body of POST /register.
func shapeOfRegistrations() body.Shape {
	s := body.Of("discover", "hash_profile", "replace")
	for i := range registration.Table {
		if f := &registration.Table[i]; !strings.HasPrefix(f.Name, "hash_profile.") {
			s = append(s, body.Of(f.Names...)...)
		}
	}
	return append(s, body.Field{Name: "lora_id", Kind: body.Ignored}, body.Field{Name: "cache_group", Kind: body.Ignored})
}

// registration reads a registration, the URL of the engine that is to be asked for what it lacks, and whether the engine
// or its events are to tell the block size. Fields that are required come first, so that errors name those first.
func (f *fields) registration() (r registration.Registration, discover string, auto bool) {
	discover = f.text("discover")
	asks, publishes := discover != "", f.text("events") == ""
	_, size := f.field("block_size") // may be left out or auto with discover, and auto without it
	auto = size == nil && asks || size != nil && size[0] == '"' && string(body.Unquoted(size)) == "auto"
	optional := func(name string) bool {
		switch name {
		case "endpoint":
			return asks || !publishes // there is nothing to follow
		case "type", "modelname":
			return asks
		case "dp_rank": // the ranks of LMCache are in its reports, and most engines without events have one
			return asks || !publishes || f.text("endpoint") == registration.EndpointPush
		}
		return false
	}
	for _, required := range []bool{true, false} {
		for i := range registration.Table {
			at := &registration.Table[i]
			if at.Required != required || auto && at.Name == "block_size" || strings.HasPrefix(at.Name, "hash_profile.") {
				continue
			}
			needed := required && !optional(at.Name)
			switch v := at.Of(&r).(type) {
			case *string:
				if needed {
					*v = f.required(at.Names...)
				} else {
					*v = f.text(at.Names...)
				}
			case *int:
				if needed || f.has(at.Name) {
					*v = f.integer(at.Name, int64(at.Least))
				}
			case *[]string:
				*v = f.texts(at.Name)
			case *time.Duration:
				*v, r.MediaTTL = f.durations(at.Name)
			}
		}
	}
	r.Profile = f.profile()
	return r, discover, auto
}

// register starts a source: POST /register.
func (a *api) register(g *gin.Context) (any, error) {
	in := body.Get()
	defer in.Release()
	f, err := a.readForm(g, in, registrationFields, body.Msgpack)
	if err != nil {
		return nil, err
	}
	r, discover, auto := f.registration()
	opts := ingest.RegisterOptions{Replace: f.boolean("replace")}
	if f.err != nil {
		return nil, f.err
	}
	access.SetSubject(g, r.Key())
	view := access.View(a.conductor, g)
	if discover != "" || auto {
		err = a.askEngine(g, discovery.Target{Registration: r, URL: discover}, opts.Replace)
	} else {
		err = view.Register(r, opts)
	}
	if err = view.Commit(g.Request.Context(), r.Key(), err); err != nil {
		return nil, err
	}
	out := gin.H{"status": "registered successfully", "instance_id": r.Instance}
	durable := view.Durable(&r)
	if server.TellDurable(g, durable); !durable {
		out["durable"] = false
	}
	if len(f.warnings) > 0 {
		out["warnings"] = f.warnings
	}
	return out, nil
}

// askEngine lets an engine say what its registration lacks.
func (a *api) askEngine(g *gin.Context, t discovery.Target, replace bool) error {
	if a.opts.Discovery == nil {
		return ingest.ErrPast
	}
	if err := access.View(a.conductor, g).May(t.Tenant); err != nil {
		return err
	}
	if len(t.MayAnnounce) > 0 {
		return &invalid.FieldError{
			Field: "may_announce", Index: 0, Reason: "invalid_value",
			Message: "may_announce is for sources of the configuration file alone",
		}
	}
	if err := a.opts.Discovery.Add(t, replace); err != nil {
		return err
	}
	a.opts.Registry.Registered(membership.Source{Registration: t.Registration, Discover: t.URL})
	return a.awaitDropped(g, t.Name())
}

// awaitDropped waits until the targets that had a name before have dropped their sources, which a
// restart would find otherwise.
func (a *api) awaitDropped(g *gin.Context, name registration.Key) error {
	if err := a.opts.Discovery.AwaitDropped(g.Request.Context(), name); err != nil {
		return fmt.Errorf("%w: %w", conductor.ErrNotDurable, err)
	}
	return nil
}

// stopAsking stops asking the engine of a key, if one is asked.
func (a *api) stopAsking(g *gin.Context, key registration.Key) (bool, error) {
	if a.opts.Discovery == nil {
		return false, nil
	}
	if err := access.View(a.conductor, g).May(key.Tenant); err != nil {
		return false, err
	}
	key.Tenant = cmp.Or(key.Tenant, scope.DefaultTenant)
	for _, rank := range []int{discovery.AllRanks, key.Rank} {
		key.Rank = rank
		if a.opts.Discovery.Remove(key) {
			a.opts.Registry.Unregistered(membership.Name{Key: key, Asked: true})
			return true, a.awaitDropped(g, key)
		}
	}
	return false, nil
}

// unregister stops a source: POST /unregister. Only the key fields count.
func (a *api) unregister(g *gin.Context) (any, error) {
	in := body.Get()
	defer in.Release()
	f, err := a.readObject(g, in, keyFields, body.Msgpack)
	if err != nil {
		return nil, err
	}
	key := registration.Key{
		Instance: f.required("instance_id"),
		Tenant:   f.text("tenant_id"),
		Rank:     f.integer("dp_rank", 0),
	}
	if f.err != nil {
		return nil, f.err
	}
	access.SetSubject(g, key)
	view := access.View(a.conductor, g)
	asked, err := a.stopAsking(g, key)
	if err != nil {
		return nil, err
	}
	if key.Tenant = cmp.Or(key.Tenant, scope.DefaultTenant); !asked {
		key, err = view.Unregister(key)
	}
	if err = view.Commit(g.Request.Context(), key, err); err != nil {
		return nil, err
	}
	return gin.H{"status": "unregistered successfully", "removed_instances": []string{key.String()}}, nil
}
