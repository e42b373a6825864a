package dynamo

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/status"
)

// isWorker reports whether a registration is what Dynamo calls a worker's
// listener.
func isWorker(r *registration.Registration) bool { return !r.IsPool() }

// isListener reports the same of a source: what only a peer has told of is none.
func isListener(s *status.Source) bool { return !s.Recovered && isWorker(&s.Registration) }

// register starts a source: POST /register. It never waits for the endpoint.
//
// additional_salt is read and not used, as in the reference: its clients register
// with one and ask without. So is lora_name, which version 1.0 mixed into the hashes
// of stored blocks and, unless they named another, of queries.
func (d *Dialect) register(r *exchange) error {
	var (
		reg                  = registration.Registration{Type: registration.TypeVLLM, Clear: registration.ClearAll}
		replay, salt, lora   *string
		blockSize            uint64
		routingGroup, tenant string
		dpRank               *uint64
	)
	if err := r.decode("RegisterRequest",
		identity(&reg.Instance),
		member{name: "endpoint", required: true, read: func(d *decoder, f *body.Member) { reg.Endpoint = d.text(f) }},
		model(&reg.Model),
		member{
			name: "block_size", required: true,
			read: func(d *decoder, f *body.Member) { blockSize = d.unsigned(f, math.MaxUint32, "u32") },
		},
		stringMember("routing_group", &routingGroup),
		stringMember("tenant_id", &tenant),
		rankOrNull(&dpRank),
		stringOrNull("replay_endpoint", &replay),
		alias("additionalsalt", stringOrNull("additional_salt", &salt)),
		stringOrNull("lora_name", &lora),
	); err != nil {
		return err
	}
	r.gin.Set(ModelKey, reg.Model)
	in := group{&routingGroup, &tenant}
	reg.Tenant = in.name()
	reg.BlockSize = int(blockSize)
	if replay != nil {
		reg.ReplayEndpoint = *replay
	}
	if err := checkEndpoint(reg.Endpoint); err != nil {
		return &serviceError{http.StatusBadRequest, err.Error()}
	}
	if replay != nil {
		if err := checkReplayEndpoint(*replay); err != nil {
			return &serviceError{http.StatusBadRequest, err.Error()}
		}
	}
	if text := unusable(&reg, dpRank); text != "" {
		return &serviceError{http.StatusBadRequest, text}
	}
	if dpRank != nil {
		reg.Rank = int(*dpRank)
	}

	err := r.view(d).Register(reg, ingest.RegisterOptions{
		AnyEndpoint: true,
		Admit:       func(all iter.Seq[registration.Registration]) error { return admit(&reg, all) },
	})
	err = r.view(d).Commit(r.gin.Request.Context(), reg.Key(), err)
	var taken *registration.ConflictError // by a pool of the same name
	switch {
	case err == nil:
		server.TellDurable(r.gin, r.view(d).Durable(&reg))
		return ok(r.gin, http.StatusCreated)
	case errors.As(err, &taken):
		return alreadyRegistered(&reg)
	}
	return err
}

// unusable says what makes a registration one that could never be of use, which
// the reference does not mind: "" if nothing.
func unusable(reg *registration.Registration, dpRank *uint64) string {
	switch {
	case reg.BlockSize == 0:
		// A prompt has no blocks of no tokens: nothing would ever match, in this
		// partition and, through the check of sizes, for its later workers either.
		return "block_size must be greater than zero"
	case reg.Instance == "":
		return "instance_id must not be empty"
	case reg.Model == "":
		return "model_name must not be empty"
	case dpRank != nil && *dpRank > math.MaxInt32:
		return fmt.Sprintf("dp_rank must be at most %d, got %d", math.MaxInt32, *dpRank)
	}
	return ""
}

// admit holds a registration against the workers there are, in the order of the
// reference: an instance is in one partition, has a rank once, and a partition has
// one block size. Sizes that came through the Conductor dialect may be several:
// any of them will do.
func admit(reg *registration.Registration, all iter.Seq[registration.Registration]) error {
	var sizes []int
	taken, fits := false, false
	for other := range all {
		if !isWorker(&other) {
			continue
		}
		partition := other.Tenant == reg.Tenant && other.Model == reg.Model
		if other.Instance == reg.Instance {
			if !partition {
				return refusef(http.StatusConflict, "instance %s is already registered for model=%s routing_group=%s", reg.Instance,
					other.Model, other.Tenant)
			}
			taken = taken || other.Rank == reg.Rank
		}
		if partition {
			sizes = append(sizes, other.BlockSize)
			fits = fits || other.BlockSize == reg.BlockSize
		}
	}
	switch {
	case taken:
		return alreadyRegistered(reg)
	case len(sizes) > 0 && !fits:
		return refusef(http.StatusConflict, "block_size mismatch for model=%s routing_group=%s: existing=%d, requested=%d",
			reg.Model, reg.Tenant, slices.Min(sizes), reg.BlockSize)
	}
	return nil
}

func alreadyRegistered(reg *registration.Registration) error {
	return refusef(http.StatusConflict, "instance %s dp_rank %d already registered", reg.Instance, reg.Rank)
}

// unregister stops sources and drops their blocks: POST /unregister.
//
//	group and rank    that rank
//	group             the instance
//	rank              that rank, in every group; the reference takes the whole instance
//	neither           the instance, in every group
func (d *Dialect) unregister(r *exchange) error {
	var (
		instance, name string
		in             group
		dpRank         *uint64
	)
	if err := r.decode("UnregisterRequest",
		identity(&instance), model(&name), stringOrNull("routing_group", &in.routing), stringOrNull("tenant_id", &in.tenant),
		rankOrNull(&dpRank),
	); err != nil {
		return err
	}
	r.gin.Set(ModelKey, name)
	var other *registration.Registration // of the instance, in another partition
	known := false                       // in this one
	var keys []registration.Key
	for _, reg := range listeners(r.view(d), instance) {
		if reg.Model != name || in.named() && reg.Tenant != in.name() {
			other = &reg
			continue
		}
		known = true
		if dpRank == nil || uint64(reg.Rank) == *dpRank {
			keys = append(keys, reg.Key())
		}
	}
	removed := false
	for _, key := range keys {
		_, err := r.view(d).Unregister(key)
		switch {
		case err == nil:
			removed = true
		case !errors.Is(err, ingest.ErrNotFound): // another request was faster
			return err
		}
	}
	if err := r.view(d).Commit(r.gin.Request.Context(), registration.Key{}, nil); err != nil {
		return err
	}
	switch {
	case removed:
		return ok(r.gin, http.StatusOK)
	case known && dpRank != nil:
		return noRank(instance, *dpRank)
	case !known && other != nil:
		return refusef(http.StatusNotFound, "instance %s is registered for model=%s routing_group=%s", instance, other.Model, other.Tenant)
	}
	return noInstance(instance)
}

// listeners returns the sources of one instance, by tenant and rank.
func listeners(view conductor.View, instance string) []registration.Registration {
	all := slices.DeleteFunc(view.Shared(), func(r registration.Registration) bool {
		return r.Instance != instance || !isWorker(&r)
	})
	slices.SortFunc(all, func(a, b registration.Registration) int {
		if n := strings.Compare(a.Tenant, b.Tenant); n != 0 {
			return n
		}
		return a.Rank - b.Rank
	})
	return all
}

func noInstance(instance string) error {
	return refusef(http.StatusNotFound, "instance %s not found", instance)
}

func noRank(instance string, rank uint64) error {
	return refusef(http.StatusNotFound, "instance %s dp_rank %d not found", instance, rank)
}

// alias gives a member another name.
func alias(name string, m member) member {
	m.alias = name
	return m
}
