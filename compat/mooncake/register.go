package mooncake

import (
	"errors"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
)

// Fields of requests. Others are refused.
var (
	registerFields = body.Of("block_size", "cache_group", "dp_rank", "endpoint", "hash_profile", "instance_id", "lora_name", "modelname",
		"replay_endpoint", "tenant_id", "type")
	keyFields = body.Of("dp_rank", "instance_id", "tenant_id")
)

var types = []string{registration.TypeVLLM, registration.TypeMooncake, registration.TypeSGLang, registration.TypeStandard}

// register starts a source: POST /register.
func (d *handlers) register(g *gin.Context, f fields, e *body.Encoder) error {
	reg, err := readRegistration(f)
	if err != nil {
		return err
	}
	opts := ingest.RegisterOptions{Admit: func(all iter.Seq[registration.Registration]) error { return admit(reg, all) }}
	view := access.View(d.conductor, g)
	if err := view.Commit(g.Request.Context(), reg.Key(), view.Register(reg, opts)); err != nil {
		return refused(reg, err)
	}
	server.TellDurable(g, view.Durable(&reg))
	e.Map(2)
	e.TextField("status", "registered successfully")
	e.TextField("instance_id", reg.Instance)
	e.EndMap()
	return nil
}

// readRegistration reads the fields in the order in which the reference checks them.
func readRegistration(f fields) (reg registration.Registration, err error) {
	f.only(registerFields)
	reg.Endpoint = f.required("endpoint")
	reg.Type = f.required("type")
	reg.Model = f.required("modelname")
	reg.Instance = f.required("instance_id")
	size := f.integer("block_size")
	if size <= 0 {
		f.fail(bad("block_size", "out_of_range", "block_size must be greater than zero"))
	}
	reg.ReplayEndpoint = f.text("replay_endpoint")
	reg.Lora = f.text("lora_name")
	reg.Tenant = f.text("tenant_id")
	f.cacheGroup()
	p := f.profile()
	if !slices.Contains(types, reg.Type) {
		f.fail(bad("type", "invalid_value", "type must be vLLM or Mooncake"))
	}
	if reg.Tenant == "" {
		reg.Tenant = scope.DefaultTenant
	}
	rank := f.integer("dp_rank")
	if !isRank(rank) {
		f.fail(bad("dp_rank", "out_of_range", "dp_rank must be a non-negative int"))
	}
	if size > math.MaxInt32 {
		f.fail(invalidRegistration("invalid service registration: block_size must be at most 2147483647"))
	}
	reg.BlockSize, reg.Rank, reg.Profile = int(size), int(rank), p.settings()
	return reg, f.err
}

// cacheGroup checks the one attention group there may be.
func (f *fields) cacheGroup() {
	m := f.optional("cache_group")
	if m == nil {
		return
	}
	n, ok := f.d.cfg.Codec.Int(m.Raw)
	switch {
	case !ok:
		f.fail(bad("cache_group", "invalid_type", "cache_group must be an integer or null"))
	case n != 0:
		f.fail(bad("cache_group", "unsupported", "only cache group zero is supported"))
	}
}

// admit refuses an endpoint that another key has. The key itself is looked at first,
// by who asks. Publishers that connect to us share an endpoint.
func admit(reg registration.Registration, all iter.Seq[registration.Registration]) error {
	shared := strings.HasPrefix(reg.Endpoint, "bind:")
	taken := false
	for other := range all {
		if other.Key() == reg.Key() {
			return nil
		}
		taken = taken || !shared && other.Endpoint == reg.Endpoint
	}
	if taken {
		return invalidRegistration("conflicting active registration for endpoint: " + reg.Endpoint)
	}
	return nil
}

func invalidRegistration(text string) *failure {
	return &failure{status: http.StatusBadRequest, text: text, reason: "invalid_registration"}
}

// refused is an error of Register in the dialect's words.
func refused(reg registration.Registration, err error) error {
	var (
		conflict *registration.ConflictError
		profile  *catalog.ProfileConflictError
		field    *invalid.FieldError
	)
	switch {
	case errors.As(err, &conflict) && conflict.Why != "":
		return invalidRegistration("invalid service registration: " + conflict.Why)
	case errors.As(err, &conflict):
		return invalidRegistration("conflicting registration for service key: " + reg.Key().String())
	case errors.As(err, &profile) && profile.Pool:
		return invalidRegistration("failed to bind shared-cache profile: hash profile conflicts with the registered ContextKey profile")
	case errors.As(err, &profile):
		return invalidRegistration("failed to register prefix context: registration conflicts with the ContextKey hash profile")
	case errors.Is(err, conductor.ErrNotDurable): // because of ErrClosed, at times
		return err
	case errors.Is(err, ingest.ErrClosed):
		return invalidRegistration("manager stopped")
	case errors.As(err, &field) && field.Field == "endpoint":
		return &failure{status: http.StatusInternalServerError,
			text: "Failed to subscribe: failed to start ZMQ client: initial connection failed: failed to connect to " +
				reg.Endpoint + ": " + strings.TrimPrefix(field.Message, "endpoint: ")}
	case errors.As(err, &field):
		return invalidRegistration("invalid service registration: " + field.Message)
	}
	return err
}

// unregister stops a source: POST /unregister.
func (d *handlers) unregister(g *gin.Context, f fields, e *body.Encoder) error {
	f.only(keyFields)
	key := registration.Key{Instance: f.required("instance_id"), Tenant: f.text("tenant_id")}
	if m := f.field("dp_rank"); m == nil {
		f.fail(missing("dp_rank"))
	} else if n, ok := d.cfg.Codec.Int(m.Raw); !ok || !isRank(n) {
		f.fail(bad("dp_rank", "invalid_value", "dp_rank must be a non-negative int"))
	} else {
		key.Rank = int(n)
	}
	if f.err != nil {
		return f.err
	}
	view := access.View(d.conductor, g)
	key, err := view.Unregister(key)
	if err := view.Commit(g.Request.Context(), key, err); err != nil {
		return err
	}
	e.Map(2)
	e.TextField("status", "unregistered successfully")
	e.Name("removed_instances")
	e.List(1)
	e.Text(key.String())
	e.EndList()
	e.EndMap()
	return nil
}
