package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
)

// FuzzDecode holds the rules of any bytes: no panic; the same result twice;
// an accepted payload is exactly one msgpack value for another decoder too; every
// element of the event list is accounted for; the result is no larger than
// the payload can pay for.
func FuzzDecode(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(x.payload)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := Decode(p, DefaultLimits)
		again, errAgain := Decode(p, DefaultLimits)
		if (err == nil) != (errAgain == nil) || render(b) != render(again) {
			t.Fatalf("two decodings differ:\n%s\n%s", render(b), render(again))
		}
		if err != nil {
			if why := ReasonOf(err); why == "" || b.Events != nil || b.Dropped != nil {
				t.Fatalf("error %v has reason %q and a batch beside it", err, why)
			}
			if short := strings.Contains(err.Error(), "truncated"); short && complete(p) {
				t.Fatalf("%v, but not to another decoder", err)
			}
			return
		}
		if !complete(p) {
			t.Fatal("accepted, but not by another decoder")
		}
		events, hashes, tokens := b.Count(), 0, 0
		for i := range b.Events {
			e := &b.Events[i]
			hashes += len(e.Hashes) + len(e.Remaining)
			tokens += len(e.Tokens)
			if e.Bigram && len(e.Tokens) < 2 || len(e.Tokens) > 0 && len(e.Tokens) <= e.Ahead || e.Ahead > 63 || e.Remaining != nil &&
				len(e.Remaining) != len(e.Hashes) {
				t.Fatalf("inconsistent event: %s", renderEvent(e))
			}
			for _, items := range e.Items {
				hashes += len(items)
			}
			if e.Items != nil && len(e.Items) != len(e.Hashes) {
				t.Fatalf("items of other blocks: %s", renderEvent(e))
			}
		}
		for _, n := range b.Dropped {
			events += n
		}
		if events != claimed(t, p) {
			t.Fatalf("%d events and drops for %d elements", events, claimed(t, p))
		}
		sameApart(t, b, elementsOf(t, p))
		if hashes > len(p) || tokens > len(p) || cap(b.Events) > len(p)/minEvent+1 {
			t.Fatalf("%d bytes yield %d hashes, %d tokens, room for %d events", len(p), hashes, tokens, cap(b.Events))
		}
	})
}

// complete reports whether p is exactly one value to the other decoder.
func complete(p []byte) bool {
	r := bytes.NewReader(p)
	return msgpack.NewDecoder(r).Skip() == nil && r.Len() == 0
}

// claimed counts the elements of the event list with the other decoder.
func claimed(t *testing.T, p []byte) int {
	return toEvents(t, msgpack.NewDecoder(bytes.NewReader(p)), p)
}

// toEvents moves the other decoder to the first element of the event list, and returns how many there are.
func toEvents(t *testing.T, dec *msgpack.Decoder, p []byte) int {
	count := func() int {
		n, err := dec.DecodeArrayLen()
		must.Succeed(t, err)
		return max(n, 0)
	}
	if isArray(p[0]) {
		count()
		must.Succeed(t, dec.Skip())
		return count()
	}
	n, err := dec.DecodeMapLen()
	must.Succeed(t, err)
	for range n {
		if key, err := dec.DecodeString(); err != nil {
			t.Fatal(err)
		} else if key == "events" {
			return count()
		} else if err := dec.Skip(); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("accepted without an event list")
	return 0
}
