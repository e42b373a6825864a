package log

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What a replica wants to do with a lease.
const (
	look = "look" // nothing: it follows another
	want = "want" // likewise, and it asks the owner to give the lease to it
	hold = "hold" // renew it; or take it where no replica has it any more
	take = "take" // take it where it has ended
	give = "give" // give it back
)

// tending reads and changes the leases of sources. KEYS are lease and meta of each.
//
//	ARGV: replica, lease in ms, age of keys without a use in ms, 0 for no change; then for each
//	      source: what to do, token, whether the engine is connected
//
// An owner sees that a replica wants the lease, and gives it back at a time that suits it; only
// that replica takes it then, for as long as a lease.
//
// A token is larger than those before, also than those of contents that are lost: it begins with
// the time. A lease that has ended is still its owner's until another replica takes it.
var tending = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local out = {}
for i = 1, #KEYS, 2 do
	local lease, meta, a = KEYS[i], KEYS[i+1], 4 + (i-1) / 2 * 3
	local wish, live = ARGV[a], ARGV[a+2]
	local has = redis.call('HMGET', lease, 'owner', 'token', 'until', 'live', 'heir', 'wanted')
	local owner, token, ends = has[1] or '', has[2] or '0', tonumber(has[3] or '0')
	local mine = owner == ARGV[1] and token == ARGV[a+1]
	local heir = has[5] or ''
	if now - tonumber(has[6] or '0') > tonumber(ARGV[2]) then heir = '' end
	if wish == 'give' and mine then
		owner, ends, live = '', 0, '0'
		redis.call('HSET', lease, 'owner', owner, 'until', 0, 'live', live)
	elseif wish == 'hold' and (mine or owner == '') or wish == 'take' and (ends <= now and (heir == '' or heir == ARGV[1]) or owner == ARGV[1]) then
		if not mine then token = string.format('%d', math.max(tonumber(token) + 1, now)) end
		if heir == ARGV[1] then
			heir = ''
			redis.call('HDEL', lease, 'heir', 'wanted')
		end
		owner, ends = ARGV[1], now + ARGV[2]
		redis.call('HSET', lease, 'owner', owner, 'token', token, 'until', ends, 'live', live)
	else
		live = has[4] or '0'
		if wish == 'want' and (heir == '' or heir == ARGV[1]) then
			heir = ARGV[1]
			redis.call('HSET', lease, 'heir', heir, 'wanted', now)
		end
	end
	if wish ~= 'look' and ARGV[3] ~= '0' then
		redis.call('PEXPIRE', lease, ARGV[3])
		redis.call('PEXPIRE', meta, ARGV[3])
	end
	local m = redis.call('HMGET', meta, 'gen', 'last', 'print', 'whole')
	local left = string.format('%d', math.max(0, ends - now))
	for _, v in ipairs({owner, token, left, live, m[1] or '', m[2] or '', m[3] or '', m[4] or '', heir}) do out[#out+1] = v end
end
return out
`)

// appending adds entries to the log of a source. KEYS are lease, meta, log and cuts.
//
//	ARGV: replica, token, generation, the last sequence in it, bytes and age in ms that the log
//	      keeps, age of keys without a use in ms, whole, print of the last entry, bytes of the
//	      payloads; then for each entry: sequence, payload, publisher id or '', '1' if it is of
//	      another topic
//
// Generation ” drops the log and begins another. Sequences are texts here: numbers of Lua have
// 53 bits. Answers are {ok, generation}, {lost, owner}, or {moved, generation, last, print} where
// the log is not as the writer left it. Cuts are where a part of the log may end: sequence, time,
// and bytes before. One append removes at most four of sixteen parts.
var appending = redis.NewScript(`
local lease = redis.call('HMGET', KEYS[1], 'owner', 'token')
if lease[1] ~= ARGV[1] or lease[2] ~= ARGV[2] then return {'lost', lease[1] or ''} end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local meta = redis.call('HMGET', KEYS[2], 'gen', 'last', 'print', 'total')
local gen, last, total = ARGV[3], ARGV[4], tonumber(meta[4] or '0')
if gen == '' then
	gen, last, total = string.format('%d', math.max(tonumber(meta[1] or '0') + 1, now)), '', 0
	redis.call('DEL', KEYS[3], KEYS[4])
	redis.call('HSET', KEYS[2], 'gen', gen, 'last', '', 'print', '', 'total', 0, 'whole', ARGV[8])
elseif gen ~= meta[1] or last ~= meta[2] then
	return {'moved', meta[1] or '', meta[2] or '', meta[3] or ''}
end
if #ARGV > 10 then
	local bytes, age = tonumber(ARGV[5]), tonumber(ARGV[6])
	local newest = redis.call('LINDEX', KEYS[4], -1)
	local time, before = string.match(newest or '', ':(%d+):(%d+)$')
	if not newest or total - before >= bytes / 16 or now - time >= age / 16 then
		redis.call('RPUSH', KEYS[4], ARGV[11] .. ':' .. now .. ':' .. string.format('%d', total))
	end
	for i = 11, #ARGV, 4 do
		local more = {}
		if ARGV[i+2] ~= '' then more = {'i', ARGV[i+2]} end
		if ARGV[i+3] ~= '' then more = {'a', ARGV[i+3], unpack(more)} end
		redis.call('XADD', KEYS[3], gen .. '-' .. ARGV[i], 'p', ARGV[i+1], unpack(more))
		last = ARGV[i]
	end
	total = total + ARGV[10]
	redis.call('HSET', KEYS[2], 'last', last, 'print', ARGV[9], 'total', string.format('%d', total))
	for _ = 1, 4 do
		local cuts = redis.call('LRANGE', KEYS[4], 0, 1)
		if not cuts[2] then break end
		local before = string.match(cuts[1], ':(%d+)$')
		local to, time = string.match(cuts[2], '^(%d+):(%d+):')
		if total - before <= bytes and now - time <= age then break end
		redis.call('XTRIM', KEYS[3], 'MINID', gen .. '-' .. to)
		redis.call('LPOP', KEYS[4])
	end
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[7]) end
return {'ok', gen}
`)

// What appending answers.
const (
	answerOK    = "ok"
	answerLost  = "lost"
	answerMoved = "moved"
)

// view is what the store says of a source.
type view struct {
	owner, token string
	left         int64 // ms until the lease ends
	live         bool  // its owner is connected to the engine
	position
	whole bool   // the log is empty because the publisher has published nothing
	heir  string // replica that asks for the lease, "" for none
}

// position is where a log ends.
type position struct {
	gen   string // "": there is none
	last  string // sequence; "": the generation is empty
	print string // of the last entry, see stream.Step.Print
}

// views reads the answer of tending.
func views(answer any, n int) ([]view, error) {
	fields, _ := answer.([]any)
	if len(fields) != 9*n {
		return nil, fmt.Errorf("%d leases are answered by %d values", n, len(fields))
	}
	all := make([]view, n)
	for i := range all {
		f := fields[9*i : 9*i+9]
		v := &all[i]
		v.owner, v.token, v.live = text(f[0]), text(f[1]), text(f[3]) == "1"
		v.gen, v.last, v.print, v.whole = text(f[4]), text(f[5]), text(f[6]), text(f[7]) == "1"
		v.heir = text(f[8])
		if _, err := fmt.Sscan(text(f[2]), &v.left); err != nil {
			return nil, fmt.Errorf("end of a lease %q: %w", text(f[2]), err)
		}
	}
	return all, nil
}

func text(v any) string { s, _ := v.(string); return s }

// run runs scripts of one bucket in one round trip. A script that the store has forgotten is sent.
func run(ctx context.Context, client redis.UniversalClient, script *redis.Script, keys [][]string, args [][]any) []*redis.Cmd {
	pipe := client.Pipeline()
	cmds := make([]*redis.Cmd, len(keys))
	for i := range keys {
		cmds[i] = script.EvalSha(ctx, pipe, keys[i], args[i]...)
	}
	pipe.Exec(ctx) // each command has its error
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			cmds[i] = script.Eval(ctx, client, keys[i], args[i]...)
		}
	}
	return cmds
}

// errAnswer is an answer of another form.
var errAnswer = errors.New("the store answers in another form")

// appended reads the answer of appending.
func appended(cmd *redis.Cmd) (answer string, at position, owner string, err error) {
	all, err := cmd.Slice()
	switch {
	case err != nil:
		return "", at, "", err
	case len(all) == 2 && text(all[0]) == answerLost:
		return answerLost, at, text(all[1]), nil
	case len(all) == 2 && text(all[0]) == answerOK:
		at.gen = text(all[1])
		return answerOK, at, "", nil
	case len(all) == 4 && text(all[0]) == answerMoved:
		return answerMoved, position{text(all[1]), text(all[2]), text(all[3])}, "", nil
	}
	return "", at, "", errAnswer
}
