package http

import (
	"math"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/access"
	"kvconductor/conductor/body"
)

// What a body may say; fields by other names are ignored.
var (
	keyFields          = body.Of("instance_id", "tenant_id", "dp_rank")
	registrationFields = append(body.Of("endpoint", "type", "modelname", "model", "model_name", "block_size", "replay_endpoint",
		"lora_name", "additionalsalt", "additional_salt", "ttl", "serves",
		"copies", "owned", "clear", "may_announce", "hash_profile", "sequence", "replace"),
		append(keyFields, body.Field{Name: "lora_id", Kind: body.Ignored}, body.Field{Name: "cache_group", Kind: body.Ignored})...)
)

// register starts a source: POST /register.
func (a *api) register(g *gin.Context) (any, error) {
	strict, err := strict(g)
	if err != nil {
		return nil, err
	}
	in := body.Get()
	defer in.Release()
	f, err := a.read(g, in, registrationFields)
	if err != nil {
		return nil, err
	}
	warnings, err := a.checkNames(in, registrationFields, strict, true)
	if err != nil {
		return nil, err
	}
	r := conductor.Registration{
		Endpoint:       f.required("endpoint"),
		Type:           f.required("type"),
		Model:          f.required("modelname", "model", "model_name"),
		Instance:       f.required("instance_id"),
		BlockSize:      f.blockSize(),
		Rank:           f.integer("dp_rank", 0, math.MaxInt32),
		ReplayEndpoint: f.text("replay_endpoint"),
		Lora:           f.text("lora_name"),
		Tenant:         f.text("tenant_id"),
		Salt:           f.text("additionalsalt", "additional_salt"),
		Serves:         f.texts("serves"),
		Copies:         f.text("copies"),
		Owned:          f.text("owned"),
		Clear:          f.text("clear"),
		MayAnnounce:    f.texts("may_announce"),
		Profile:        f.profile(),
		Sequence:       f.text("sequence"),
	}
	r.TTL, r.MediaTTL = f.durations("ttl")
	opts := conductor.RegisterOptions{Replace: f.boolean("replace")}
	if f.err != nil {
		return nil, f.err
	}
	g.Set(access.SubjectKey, r.Key().String())
	if err := access.View(a.conductor, g).Register(r, opts); err != nil {
		return nil, err
	}
	out := gin.H{"status": "registered successfully", "instance_id": r.Instance}
	if len(warnings) > 0 {
		out["warnings"] = warnings
	}
	return out, nil
}

// unregister stops a source: POST /unregister. Only the key fields count.
func (a *api) unregister(g *gin.Context) (any, error) {
	in := body.Get()
	defer in.Release()
	f, err := a.read(g, in, keyFields)
	if err != nil {
		return nil, err
	}
	key := conductor.Key{
		Instance: f.required("instance_id"),
		Tenant:   f.text("tenant_id"),
		Rank:     f.integer("dp_rank", 0, math.MaxInt32),
	}
	if f.err != nil {
		return nil, f.err
	}
	g.Set(access.SubjectKey, key.String())
	key, err = access.View(a.conductor, g).Unregister(key)
	if err != nil {
		return nil, err
	}
	return gin.H{"status": "unregistered successfully", "removed_instances": []string{key.String()}}, nil
}
