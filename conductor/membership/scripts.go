package membership

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Scripts of the registry. KEYS[1] is the run id: a store that is not the one of the last beat is
// left alone, and the next beat tells what happened to it.

// farAhead is how much later than the store's clock the time of an entry can be, if a replica wrote it: clocks of the nodes
// of a store may differ. A later one was forged, so every change replaces it, or the clock of the store was set back: then replicas
// write again what they know, with the time of now.
const farAhead = 24 * time.Hour

// believing defines believed(time, now), which returns the time of an entry, or 0 if no replica can have written it.
var believing = fmt.Sprintf(`
local function believed(at, now)
	at = tonumber(at or 0)
	return at <= now + %d and at or 0
end
`, farAhead.Milliseconds())

// revising defines revisionOf(key), which returns the revision of the registry, and raise(key). A revision that is no number
// which can grow becomes the time in microseconds. No count of changes grows as fast, so replicas read the registry again, whichever
// revision they have read it at.
const revising = `
local function revisionOf(key)
	local is = redis.pcall('GET', key) or '0'
	if is == '0' or type(is) == 'string' and string.find(is, '^[1-9]%d*$') and tonumber(is) < 9007199254740992 then return is end
	local clock = redis.call('TIME')
	is = string.format('%.0f', clock[1] * 1000000 + clock[2])
	redis.call('SET', key, is)
	return is
end
local function raise(key)
	revisionOf(key)
	redis.call('INCR', key)
end
`

// writing enters changes. KEYS are the run id, the revision, the sources, the ends of entries, and the leases of replicas.
//
//	ARGV: run, 1 if the replica sees no other, ms that an unregistered entry stays; then for each change: field, the
//	record behind its time, the record that it only makes later or "", time of the entry that the replica knows, time of
//	an entry that is written again or 0, time at which the change was made, ms until the entry ends or 0: from now on, or
//	from its time if it is written again
//
// A change of an entry that the replica knows counts. Where another replica came first, the later
// change counts; of two in one millisecond the one that comes last. The answer has the time of each entry, with
// "=" before it if only that was changed, 0 for one that was not written, -1 for one that was unregistered too long ago.
// A change of the time alone does not raise the revision, because the other replicas have nothing to do. Nor does the
// unregistration of an entry that neither the replica nor the store has heard of: it is for replicas that
// write the entry later. Where there is no other, it is answered by -1. If the store has the entry, it is like any other.
var writing = redis.NewScript(believing + revising + `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local alone = ARGV[2] == '1' and #redis.call('ZRANGE', KEYS[5], 0, 1) < 2
local mark = '"gone":true,"unheard":true,'
local out, changed = {}, false
for i = 4, #ARGV, 7 do
	local field, tail, same, seen = ARGV[i], ARGV[i+1], ARGV[i+2], believed(ARGV[i+3], now)
	local at, made, lasts = tonumber(ARGV[i+4]), tonumber(ARGV[i+5]), tonumber(ARGV[i+6])
	local have = redis.call('HGET', KEYS[3], field) or ''
	local _, to, was = string.find(have, '^{"at":(%d+),')
	was = believed(was, now)
	local says = to and string.sub(have, to + 1)
	local unheard = string.sub(tail, 1, #mark) == mark
	if unheard and have ~= '' and string.sub(says or '', 1, #mark) ~= mark then
		tail, lasts, unheard = '"gone":true,' .. string.sub(tail, #mark + 1), tonumber(ARGV[3]), false
	end
	local again = at ~= 0
	if again and believed(at, now) == 0 then at = now end
	if not again then
		at = math.min(made, now)
		if was <= seen or was == at then at = math.max(at, was + 1) end
	end
	local gone = string.sub(tail, 1, 11) == '"gone":true'
	local ends = (gone and again and at or now) + lasts
	local later = same ~= '' and says == same
	if at <= was and (says == tail or later) then
		at = was -- it was written, and the answer was lost; or another replica has made it later still
	elseif gone and ends < now or unheard and alone then
		at = -1
	elseif at > was and later then
		redis.call('HSET', KEYS[3], field, string.format('{"at":%.0f,', at) .. same)
		if gone then redis.call('ZADD', KEYS[4], ends, field) end
	elseif at > was then
		redis.call('HSET', KEYS[3], field, string.format('{"at":%.0f,', at) .. tail)
		if lasts > 0 then redis.call('ZADD', KEYS[4], ends, field) else redis.call('ZREM', KEYS[4], field) end
		changed = changed or not unheard
	else
		at = 0
	end
	out[#out + 1] = (later and at > 0 and '=' or '') .. string.format('%.0f', at)
end
if changed then raise(KEYS[2]) end
return out
`)

// reading returns the registry at one moment, and the store's time in ms since 1970. It removes entries that
// are too long for a replica to have written them, because beats behind a long answer would be late, and returns the beginning of
// their fields and no text. KEYS are the run id, the revision and the sources; ARGV is the most bytes of a field or a text.
var reading = redis.NewScript(`
local clock, most = redis.call('TIME'), tonumber(ARGV[1])
local all = redis.call('HGETALL', KEYS[3])
for i = 1, #all, 2 do
	if #all[i] > most or #all[i+1] > most then
		redis.call('HDEL', KEYS[3], all[i])
		all[i], all[i+1] = string.sub(all[i], 1, 200), ''
	end
end
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '0', all,
	clock[1] * 1000 + math.floor(clock[2] / 1000)}
`)

// confirming tells the store which entries the configuration of a replica still has.
//
//	KEYS: run id, ends of entries
//	ARGV: run, ms until the entries end, 1 for entries that the configuration has lost; the fields
var confirming = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local clock = redis.call('TIME')
local ends = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[2]
for i = 4, #ARGV do
	redis.call('ZADD', KEYS[2], 'XX', ARGV[3] == '1' and 'LT' or 'GT', ends, ARGV[i])
end
return 1
`)

// sweeping ends entries: those that no configuration has are unregistered, those that were
// unregistered long ago are forgotten. What replicas that are gone said of sources goes too.
//
//	KEYS: run id, revision, sources, ends of entries, what replicas say, what they follow
//	ARGV: run, ms that an unregistered entry stays, how many entries end at most. The answer has how many did
var sweeping = redis.NewScript(believing + revising + `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local changed = false
local ended = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, ARGV[3])
for _, field in ipairs(ended) do
	local have = redis.call('HGET', KEYS[3], field)
	local was = string.match(have or '', '^{"at":(%d+),')
	if not have or string.find(have, '^{"at":%d+,"gone":true') then
		redis.call('HDEL', KEYS[3], field)
		redis.call('ZREM', KEYS[4], field)
	else
		redis.call('HSET', KEYS[3], field, string.format('{"at":%.0f,"gone":true,"swept":true}', math.max(now, believed(was, now) + 1)))
		redis.call('ZADD', KEYS[4], now + ARGV[2], field)
		changed = true
	end
end
if changed then raise(KEYS[2]) end
for _, replica in ipairs(redis.call('HKEYS', KEYS[6])) do
	if redis.call('HEXISTS', KEYS[5], replica) == 0 then redis.call('HDEL', KEYS[6], replica) end
end
return {#ended}
`)

// telling writes what a replica follows. KEYS are the run id and what replicas follow.
//
//	ARGV: run, replica, text
var telling = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
`)
