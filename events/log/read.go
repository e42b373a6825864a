package log

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"kvconductor/events/payload"
)

const (
	// page is how many entries one command returns of a source.
	page = 128
	// A follower that has received so much, and not handed it on, is left out of reads.
	waiting      = 8 * page
	waitingBytes = 4 << 20
	// block is how long a read waits in the store: a source that begins is part of the next one.
	block = 250 * time.Millisecond
	// crowded is the same while a follower is left out.
	crowded = 10 * time.Millisecond
)

// following is a subscription to the log.
type following struct {
	source *Source
	gen    string
	number uint64        // gen as a number
	pos    atomic.Uint64 // 1 + the last sequence received, 0 for none
	queue  chan payload.Message
	bytes  atomic.Int64 // in queue
	ended  chan struct{}
	once   sync.Once
	why    error // valid once ended is closed
}

// follow begins a subscription behind what the log has. It returns nil if there is no log.
func (s *Source) follow(ctx context.Context) (*following, error) {
	limited, cancel := context.WithTimeout(ctx, s.log.cfg.Store.Timeout())
	defer cancel()
	answer, err := s.log.cfg.Store.Client().HMGet(limited, s.keys[1], "gen", "last").Result()
	if err != nil {
		return nil, err
	}
	gen, last := text(answer[0]), text(answer[1])
	f := &following{source: s, gen: gen, queue: make(chan payload.Message, waiting), ended: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.token != "":
		return nil, errTail
	case gen == "" || gen != s.view.gen:
		s.log.look()
		return nil, nil // the next look tells
	}
	if f.number, err = strconv.ParseUint(gen, 10, 64); err != nil {
		return nil, err
	}
	if last != "" {
		seq, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			return nil, err
		}
		f.pos.Store(seq + 1)
	}
	s.open = f
	s.bucket.read(f)
	return f, nil
}

// Replays reports true: the log does.
func (f *following) Replays() bool { return true }

// behind is how many entries before a position were not received.
func (f *following) behind(at position) uint64 {
	last, err := strconv.ParseUint(at.last, 10, 64)
	if err != nil || at.gen != f.gen || last < f.pos.Load() {
		return 0
	}
	return last + 1 - f.pos.Load()
}

func (f *following) Recv() (payload.Message, error) {
	select {
	case m := <-f.queue:
		if left := f.bytes.Add(-int64(len(m.Frames[2]))); left == 0 || len(f.queue) == waiting/2 {
			f.source.bucket.look()
		}
		return m, nil
	case <-f.ended:
		return payload.Message{}, f.why
	}
}

// end makes Recv fail.
func (f *following) end(why error) {
	f.once.Do(func() {
		f.why = why
		close(f.ended)
	})
}

func (f *following) Close() error {
	f.end(context.Canceled)
	f.source.leave(f)
	return nil
}

// full reports whether another page has no room.
func (f *following) full() bool {
	return len(f.queue) > waiting-page || f.bytes.Load() > waitingBytes
}

// take hands on what was read.
func (f *following) take(m redis.XMessage) error {
	gen, seq, ok := entryID(m.ID)
	if !ok {
		return fmt.Errorf("an entry of the log is named %q", m.ID)
	}
	if gen != f.number {
		f.source.log.look()
		return errGeneration
	}
	if seq < f.pos.Load() {
		return nil
	}
	topic, number, body := f.source.frames(seq, m.Values)
	f.pos.Store(seq + 1)
	f.bytes.Add(int64(len(body)))
	select {
	case f.queue <- payload.Of(topic, number, body):
	case <-f.ended:
	}
	return nil
}

// entryID reads the name of an entry.
func entryID(id string) (gen, seq uint64, ok bool) {
	before, after, _ := strings.Cut(id, "-")
	gen, err := strconv.ParseUint(before, 10, 64)
	seq, err2 := strconv.ParseUint(after, 10, 64)
	return gen, seq, err == nil && err2 == nil
}

// frames returns the frames of an entry as the engine sends them.
func (s *Source) frames(seq uint64, values map[string]any) (topic, number, body []byte) {
	number = binary.BigEndian.AppendUint64(make([]byte, 0, 24), seq)
	number = append(number, text(values["i"])...)
	if text(values["a"]) == "" {
		topic = []byte(s.cfg.Topic)
	}
	body = unsafe.Slice(unsafe.StringData(text(values["p"])), len(text(values["p"]))) // nothing writes to payloads
	return topic, number, body
}

// read lets a subscription receive.
func (b *bucket) read(f *following) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[f] = true
	if !b.reads {
		b.reads = true
		b.log.tasks.Go(b.receive)
	}
}

// receive reads for the followers of the bucket until there is none.
func (b *bucket) receive() {
	for {
		list, left, more := b.readers()
		if !more {
			return
		}
		wait := block
		if left {
			wait = crowded
		}
		if len(list) == 0 {
			select {
			case <-b.ready:
			case <-time.After(crowded):
			}
			continue
		}
		streams := make([]string, 2*len(list))
		named := make(map[string]*following, len(list))
		for i, f := range list {
			streams[i], streams[len(list)+i] = f.source.keys[2], f.gen+"-0"
			if pos := f.pos.Load(); pos > 0 {
				streams[len(list)+i] = f.gen + "-" + strconv.FormatUint(pos-1, 10)
			} else {
				streams[len(list)+i] = strconv.FormatUint(f.number-1, 10) + "-18446744073709551615"
			}
			named[streams[i]] = f
		}
		answer, err := b.log.cfg.Store.Waiting().XRead(b.log.ctx, &redis.XReadArgs{Streams: streams, Count: page, Block: wait}).Result()
		if err == redis.Nil {
			continue
		}
		if err != nil {
			b.log.n.failed.Add(1)
			for _, f := range list {
				f.end(err)
			}
			continue
		}
		for _, one := range answer {
			f := named[one.Stream]
			for _, m := range one.Messages {
				if err := f.take(m); err != nil {
					f.end(err)
					break
				}
			}
		}
	}
}

// look lets a reader that found no room look again.
func (b *bucket) look() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// readers returns the subscriptions that have room, one for each log. left reports that there are
// others, more that there are any.
func (b *bucket) readers() (list []*following, left, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := make(map[string]bool, len(b.sessions))
	for f := range b.sessions {
		select {
		case <-f.ended:
			delete(b.sessions, f)
			continue
		default:
		}
		if f.full() || taken[f.source.cfg.Key] {
			left = true
			continue
		}
		taken[f.source.cfg.Key] = true
		list = append(list, f)
	}
	more = len(b.sessions) > 0 && b.log.ctx.Err() == nil
	b.reads = more
	if !more {
		for f := range b.sessions {
			f.end(context.Canceled)
		}
	}
	return list, left, more
}

// replay returns the batches of the log from a sequence on. If the log does not begin there it
// returns errGap while a snapshot is looked for, else nil, unless alone says that nothing else has them.
func (f *following) replay(ctx context.Context, from uint64, alone bool) (*replaying, error) {
	r := &replaying{source: f.source, gen: f.gen, next: from, ctx: ctx}
	r.ctx, r.cancel = context.WithCancel(ctx)
	if err := r.fetch(); err != nil {
		r.cancel()
		return nil, err
	}
	first := max(from, f.source.cfg.First)
	begins := len(r.page) > 0 && r.page[0].ID == f.gen+"-"+strconv.FormatUint(first, 10)
	if len(r.page) > 0 && !begins && f.source.refuse() {
		r.cancel()
		return nil, errGap
	}
	f.source.mu.Lock()
	v := f.source.view
	f.source.mu.Unlock()
	if !begins && !alone && !(len(r.page) == 0 && v.gen == f.gen && v.whole && v.last == "") {
		r.cancel()
		f.source.log.n.asked.Add(1)
		return nil, nil
	}
	f.source.log.n.fromLog.Add(1)
	return r, nil
}

// replaying is a replay out of the log.
type replaying struct {
	source *Source
	gen    string
	ctx    context.Context
	cancel context.CancelFunc
	page   []redis.XMessage
	next   uint64 // sequence after those of page
	over   bool   // the end was told
}

// fetch gets the next page.
func (r *replaying) fetch() (err error) {
	ctx, cancel := context.WithTimeout(r.ctx, r.source.log.cfg.Store.Timeout())
	defer cancel()
	r.page, err = r.source.log.cfg.Store.Client().XRangeN(ctx, r.source.keys[2], r.gen+"-"+strconv.FormatUint(r.next, 10), r.gen+"-18446744073709551615", page).Result()
	if n := len(r.page); err == nil && n > 0 {
		_, seq, _ := entryID(r.page[n-1].ID)
		r.next = seq + 1
	}
	return err
}

// endOfReplay is the sequence that marks the end.
var endOfReplay = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (r *replaying) Recv() (payload.Message, error) {
	if len(r.page) == 0 && !r.over {
		if err := r.fetch(); err != nil {
			return payload.Message{}, err
		}
	}
	if len(r.page) == 0 {
		r.over = true
		return payload.Of(nil, endOfReplay, nil), nil
	}
	m := r.page[0]
	if r.page = r.page[1:]; len(r.page) == 0 && r.next == 0 {
		r.over = true
	}
	_, seq, ok := entryID(m.ID)
	if !ok {
		return payload.Message{}, fmt.Errorf("an entry of the log is named %q", m.ID)
	}
	topic, number, body := r.source.frames(seq, m.Values)
	if r.source.cfg.Topic == "" {
		return payload.Of(nil, number, body), nil
	}
	return payload.Of(nil, topic, number, body), nil
}

func (r *replaying) Close() error { r.cancel(); return nil }
