package tape

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/keyfile"
	"example.com/conductor/spelling"
)

// Target names one batch of a tape, or a time.
type Target struct {
	Source string // instance|tenant|rank, or the instance alone
	Epoch  uint64 // 0: the last one that has Seq
	Seq    uint64

	Time time.Time // if set, the last record up to then is meant, and nothing else counts
}

// ParseTarget reads SOURCE:SEQ, SOURCE:EPOCH/SEQ, a time of RFC 3339, or a duration before
// now. SOURCE may hold colons; a time wins.
func ParseTarget(text string, now time.Time) (t Target, err error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil && !at.IsZero() {
		return Target{Time: at}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return Target{Time: now.Add(-ago)}, nil
	}
	bad := fmt.Errorf("%q is no SOURCE:SEQ, SOURCE:EPOCH/SEQ, RFC 3339 time or duration", text)
	colon := strings.LastIndexByte(text, ':')
	if colon <= 0 {
		return t, bad
	}
	t.Source = text[:colon]
	seq := text[colon+1:]
	if epoch, rest, ok := strings.Cut(seq, "/"); ok {
		seq = rest
		if t.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil || t.Epoch == 0 {
			return t, bad
		}
	}
	if t.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
		return t, bad
	}
	return t, nil
}

// span is the batches of one epoch of one registration.
type span struct {
	run         uint64
	source      uint32
	epoch       uint64
	first, last uint64
}

func (s span) String() string {
	return fmt.Sprintf("%d/%d to %d/%d", s.epoch, s.first, s.epoch, s.last)
}

// contents is what Locate learns about one key.
type contents struct {
	spans []span
	found Position // of the target, were this key meant
	ok    bool
}

// Locate reads a whole tape and returns the position of the target, the last one if
// several fit, and the runs of the tape. key is that of Open.
func Locate(dir string, key *keyfile.Key, t Target, progress func(read, total int64)) (Position, Runs, error) {
	var runs Runs
	r, err := Open(dir, key)
	if err != nil {
		return Position{}, runs, err
	}
	all := make(map[string]*contents)
	var upTo contents // the target's time
	var rec Record
	for {
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return Position{}, runs, err
		}
		runs.AddRecord(&rec)
		if !rec.Time.After(t.Time) {
			upTo.found, upTo.ok = rec.At, true
		}
		name, known := runs.keys[rec.Source]
		switch {
		case !known:
		case rec.Kind == Registered && all[name] == nil:
			all[name] = &contents{}
		case rec.Kind == Batch || rec.Kind == Idle:
			all[name].addBatches(&rec, t)
		}
		if progress != nil {
			progress(r.Progress())
		}
	}
	if n := r.Damage().Unopened; n > 0 && len(runs.List) == 0 {
		return Position{}, runs, fmt.Errorf("the key opens none of the journal's %s", spelling.Count(n, "record"))
	}
	if !t.Time.IsZero() {
		if !upTo.ok {
			at := t.Time.Format(time.RFC3339Nano)
			return Position{}, runs, fmt.Errorf("the journal holds nothing of %s; %s", at, runs.describeBegin())
		}
		return upTo.found, runs, nil
	}
	name, err := chooseKey(t.Source, slices.Sorted(maps.Keys(all)))
	if err != nil {
		return Position{}, runs, err
	}
	c := all[name]
	switch {
	case c.ok:
		return c.found, runs, nil
	case len(c.spans) == 0:
		return Position{}, runs, fmt.Errorf("the journal holds no batch of %q", name)
	}
	return Position{}, runs, fmt.Errorf("the journal holds no batch %s of %q; it holds %s", t.batch(), name, joinSpans(c.spans))
}

// addBatches adds a record of batches of the key.
func (c *contents) addBatches(rec *Record, t Target) {
	first := rec.Seq
	if n := len(c.spans); n > 0 && c.spans[n-1].run == rec.Run && c.spans[n-1].source == rec.Source && c.spans[n-1].epoch == rec.Epoch {
		if rec.Kind == Idle {
			first = min(c.spans[n-1].last+1, rec.Seq)
		}
		c.spans[n-1].last = rec.Seq
	} else {
		c.spans = append(c.spans, span{rec.Run, rec.Source, rec.Epoch, rec.Seq, rec.Seq})
	}
	if first <= t.Seq && t.Seq <= rec.Seq && (t.Epoch == 0 || t.Epoch == rec.Epoch) {
		c.found, c.ok = rec.At, true
	}
}

func (t Target) batch() string {
	if t.Epoch == 0 {
		return strconv.FormatUint(t.Seq, 10)
	}
	return fmt.Sprintf("%d/%d", t.Epoch, t.Seq)
}

// chooseKey returns the key that a source was named by.
func chooseKey(source string, keys []string) (string, error) {
	if slices.Contains(keys, source) {
		return source, nil
	}
	var fits []string
	for _, k := range keys {
		if strings.HasPrefix(k, source+"|") {
			fits = append(fits, k)
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return "", fmt.Errorf("%q is several sources: %s", source, quoteKeys(fits))
	case len(keys) == 0:
		return "", errors.New("the journal holds no source")
	}
	return "", fmt.Errorf("the journal holds no source %q; it holds %s", source, quoteKeys(keys))
}

// listed bounds what an error lists.
const listed = 8

func quoteKeys(keys []string) string {
	quoted := make([]string, 0, listed)
	for _, k := range keys[:min(listed, len(keys))] {
		quoted = append(quoted, strconv.Quote(k))
	}
	if n := len(keys) - len(quoted); n > 0 {
		quoted = append(quoted, fmt.Sprintf("%d more", n))
	}
	return strings.Join(quoted, ", ")
}

// joinSpans prints the last spans, oldest first.
func joinSpans(spans []span) string {
	var parts []string
	if n := len(spans) - listed; n > 0 {
		parts = append(parts, fmt.Sprintf("%d older epochs", n))
		spans = spans[n:]
	}
	for _, s := range spans {
		parts = append(parts, s.String())
	}
	return strings.Join(parts, ", ")
}
