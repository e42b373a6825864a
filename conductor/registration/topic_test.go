package registration

import (
	"strings"
	"testing"
)

// TestTopicConflicts holds which registrations cannot stand beside each other because their names make one topic.
func TestTopicConflicts(t *testing.T) {
	const bound = "bind:tcp://*:5557"
	at := func(endpoint, instance, model string, rank int) Registration {
		return Registration{Endpoint: endpoint, Type: "vLLM", Instance: instance, Model: model, Rank: rank, BlockSize: 16,
			Tenant: "default"}
	}
	f := func(a, b Registration, conflict bool) {
		t.Helper()
		same := a.Publisher() == b.Publisher()
		if err := TopicConflict(&b, &a); (same && err != nil) != conflict {
			t.Errorf("%+v and %+v: one publisher %t, %v", a.Key(), b.Key(), same, err)
		}
		refused := false
		for _, fault := range Faults([]Registration{a, b}) {
			refused = refused || fault.At == 1 && fault.Field == "instance_id" && fault.Finding == "" &&
				strings.Contains(fault.Reason, b.Topic())
		}
		if refused != conflict {
			t.Errorf("%+v and %+v: the settings are refused %t", a.Key(), b.Key(), refused)
		}
	}
	f(at(bound, "a@b", "c", 0), at(bound, "a", "b@c", 0), true)
	f(at("bind:tcp://0.0.0.0:5557", "a@b", "c", 0), at(bound, "a", "b@c", 0), true) // the same socket
	f(at(bound, "p@3", "m@main", 1), at(bound, "p", "3@m@main", 1), true)
	f(at(bound, "a@b", "c", 0), at(bound, "a", "b@d", 0), false)
	f(at(bound, "a@b", "c", 0), at(bound, "a", "b@c", 1), false) // their ranks tell them apart
	f(at(bound, "a@b", "c", 0), at("bind:tcp://*:5558", "a", "b@c", 0), false)
	f(at(bound, "a@b", "c", 0), at(bound, "a@b", "c", 0), false)
	f(at("tcp://h:1", "a@b", "c", 0), at("tcp://h:1", "a", "b@c", 0), false) // one publisher, whatever its topic is
	f(at(EndpointPush, "a@b", "c", 0), at(EndpointPush, "a", "b@c", 0), false)
	one, two := at("tcp://h:1", "a@b", "c", 0), at("tcp://h:1", "a", "b@c", 0)
	one.Sequence, two.Sequence = SequenceShared, SequenceShared
	f(one, two, true)
	other := at(bound, "a", "b@c", 0)
	other.Tenant = "acme" // which may not learn of it
	if all := Faults([]Registration{at(bound, "a@b", "c", 0), other}); len(all) != 1 || all[0].Finding == "" {
		t.Errorf("two tenants: %+v", all)
	}
}

// TestNamesThatNoTopicHas refuses names that end within their topic.
func TestNamesThatNoTopicHas(t *testing.T) {
	for endpoint, refused := range map[string]bool{"bind:tcp://*:5557": true, "tcp://h:1": false} {
		for _, r := range []Registration{{Instance: "a\x00b", Model: "m"}, {Instance: "a", Model: "m\x00"}} {
			r.Endpoint, r.Type, r.BlockSize = endpoint, "vLLM", 16
			if err := r.Normalize(false); (err != nil) != refused || refused && !strings.Contains(err.Error(), "topics end there") {
				t.Errorf("%s, %q, %q: %v", endpoint, r.Instance, r.Model, err)
			}
		}
	}
}
