package main

// An equivalence is a mutant that changes nothing that a promise is about.
type equivalence struct {
	file, change string // change is the line as it is then, or, if it is left out, as it was, and leftOut
	reason       string
}

const leftOut = " => do end"

func (m mutant) change() string {
	if m.after == "do end" {
		return m.before + leftOut
	}
	return m.after
}

const (
	costs   = "it is the long way to the same, or does again what is done"
	evicted = "it makes a difference only where the server has evicted one of two keys that belong together, and then loses nothing"
	dead    = "what is dead is in nobody's way, and goes with its time to live"
	first   = "only the first, or whether there is one, counts; tickets begin at 1"
)

var equivalences = []equivalence{
	{"force.lua", "if token then", "it hands over to the other keys, where nobody is"},
	{"force.lua", "leave_sole(token, mode, 1, id, before)", "what it makes is dropped"},
	{"lock.lua", "if (not last or last < now) and tonumber(ARGV[3]) < 86400000 then", "a lease of just a day is long, too"},
	{"lock.lua", "elseif string.sub(sole, 2, 4) ~= 'past' then", costs},
	{"lock.lua", "elseif string.sub(sole, 1, 5) ~= 'past' then", costs},
	{"rlock.lua", "if not sole and (later or not token and not redis.call('GET', KEYS[4])) and tonumber(ARGV[3]) < 86400000 then", "a lease of just a day is long, too"},
	{"rlock.lua", "elseif sole then", costs},
	{"rlock.lua", "elseif sole and string.sub(sole, 2, 4) ~= 'past' then", costs},
	{"rlock.lua", "elseif sole and string.sub(sole, 1, 5) ~= 'past' then", costs},
	{"runlock.lua", "local reply = release_sole(ARGV[2])", costs},
	{"runlock.lua", "return release_sole(ARGV[2]) or give_up(ARGV[2], call('GET', WRITER))", costs},
	{"runlock.lua", "return present >= 0 and release_sole(ARGV[2]) or give_up(ARGV[2], call('GET', WRITER))", costs},
	{"solelock.lua", "if sole == ARGV[1] and sole <= now then", "what sole says is longer than a token"},
	{"shared/sole.lua", "elseif left >= 0 then", "a key that lives for no time is gone"},
	{"shared/sole.lua", "if left <= 0 and token < now and tonumber(lease) < 86400000 and (told or before == '' or now - token > 10000000) then", "a lease of just a day is long, too"},
	{"shared/sole.lua", "if left <= 0 and token < now and tonumber(lease) <= 86400000 and (told or before == '' or now - token >= 10000000) then", "ten seconds are long"},
	{"shared/sole.lua", "if (id ~= hold or mode == 'free') and string.find((call('GET', SOLE) or '') .. ' ', ' ' .. hold .. ' ', 2, true) then", "a hold is never the first word"},
	{"shared/sole.lua", "if not done or math.abs(tonumber(done)) <= tonumber(number) then", costs},
	{"shared/sole.lua", "if left > 1 and id == hold then", costs},
	{"shared/sole.lua", "if token and left <= 1 then", costs},
	{"shared/sole.lua", "if left < 0 and token < now and tonumber(lease) <= 86400000 and (told or before == '' or now - token > 10000000) then", costs},
	{"shared/sole.lua", "if left <= tonumber(lease) then", costs},
	{"reenter.lua", "return first ~= whose or tonumber(number) <= tonumber(ARGV[4])", costs},
	{"reenter.lua", "call('SET', COUNT, hold .. count, 'PX', math.max(call('PTTL', WRITER), 2))",
		"the count of a hold that ends within 2 ms outlasts it by one"},
	{"renew.lua", "local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 1, 100)", "it clears away one dead reader less at a time"},
	{"renew.lua", "local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, 101)", "it clears away one dead reader more at a time"},
	{"rlock.lua", "local later = token and token <= now", "it sets what is set"},
	{"rlock.lua", "if left > 0 and call('EXISTS', READERS) == 1 and call('HSETNX', READERS, hold, token) == 1 then", costs},
	{"rlock.lua", "if left >= 1 and call('EXISTS', READERS) == 1 and call('HSETNX', READERS, hold, token) == 1 then", costs},
	{"rlock.lua", "if left >= 0 and call('EXISTS', READERS) == 2 and call('HSETNX', READERS, hold, token) == 1 then", costs},
	{"rlock.lua", "if left <= tonumber(ARGV[3]) then", costs},
	{"rlock.lua", "if writer == ARGV[6] then", "an argument is never false"},
	{"unlock.lua", "local first = writer == ARGV[1] and redis.call('ZRANGE', KEYS[2], 0, 2, 'WITHSCORES')", first},
	{"unlock.lua", "if type(redis.pcall('GET', KEYS[8])) == 'string' then", costs},
	{"unlock.lua", "if type(redis.pcall('GET', COUNT)) == 'string' then", costs},
	{"unlock.lua", "local deadline = tonumber(first[2]) >= 0 and call('HGET', WAITERS, first[1])", first},
	{"unlock.lua", "local deadline = tonumber(first[2]) > 1 and call('HGET', WAITERS, first[1])", costs},
	{"shared/base.lua", "local STEP = 251", "a step is a little larger"},
	{"shared/base.lua", "ttl = math.max(ttl, left, right) + 1000  -- a second more saves the next callers the same commands" + leftOut, evicted},
	{"shared/base.lua", "if right < ttl then", evicted},
	{"shared/base.lua", "if left <= ttl or right < ttl then", costs},
	{"shared/base.lua", "if left < ttl or right <= ttl then", costs},
	{"shared/base.lua", "return math.max(left, right)", evicted},
	{"shared/base.lua", "if call('PTTL', WRITER) <= tonumber(lease) then", costs},
	{"shared/giveup.lua", "if not done or math.abs(tonumber(done)) <= tonumber(number) then", costs},
	{"shared/grant.lua", "if token <= now then", "it sets what is set"},
	{"shared/grant.lua", "keep(QUEUE, WAITERS, 1)", "a key lives for at least 1 ms"},
	{"shared/grant.lua", "elseif tonumber(next) <= 0 then", first},
	{"shared/grant.lua", "elseif tonumber(next) < 1 then", first},
	{"shared/queue.lua", "local LONG = string.rep('0', 65)", "it is longer still"},
	{"shared/queue.lua", "local rank = call('ZRANK', QUEUE, hold)", costs},
	{"shared/queue.lua", "local ticket = string.format('%d', math.max(seen[2] or 1, last[2] or 0) + 1)", first},
	{"shared/queue.lua", "local ticket = string.format('%d', math.max(seen[2] or 0, last[2] or 1) + 1)", first},
	{"shared/queue.lua", "local ticket = string.format('%d', math.max(seen[2] or 0, last[2] or 0) + 2)", "the order is the same"},
	{"shared/queue.lua", "elseif not (call('ZADD', QUEUE, 'NX', ticket, hold) == 1) then", costs},
	{"shared/queue.lua", "elseif call('ZADD', QUEUE, 'NX', ticket, hold) == 2 then", costs},
	{"shared/queue.lua", "left = rank > 0 and tonumber(last[2]) >= 0 and seen[4] and seen[4] - ms", first},
	{"shared/queue.lua", "left = rank > 1 and tonumber(last[2]) > 0 and seen[4] and seen[4] - ms", costs},
	{"shared/queue.lua", "left = rank > 0 and tonumber(last[2]) > 1 and seen[4] and seen[4] - ms", costs},
	{"shared/queue.lua", "left = rank > 0 and tonumber(last[2]) > 0 and seen[4] and seen[4] - ms" + leftOut, costs},
	{"shared/queue.lua", "if not last[1] or not seen[3] or seen[3] <= deadline then", costs},
	{"shared/queue.lua", "return rank, left and left > 1 and left", costs},
	{"shared/queue.lua", "for _ = 2, 10 do", "it clears away one dead waiter less at a time"},
	{"shared/queue.lua", "for _ = 1, 11 do", "it clears away one dead waiter more at a time"},
	{"shared/queue.lua", "return 1, rank", "to ask again in 1 ms is to ask at once"},
	{"shared/readers.lua", "return deadline > ms and deadline", "false is as good as nil"},
	{"shared/readers.lua", "local last = call('ZREVRANGE', LEASES, 0, 1, 'WITHSCORES')", first},
	{"shared/readers.lua", "local tokens, leases, last = {}, {}, 1", "it is less than any deadline"},
	{"shared/readers.lua", "elseif others >= 1 then", "that they are one was asked before"},
	{"shared/readers.lua", "elseif others > 2 then", evicted},
	{"shared/readers.lua", "if deadline - ms > tonumber(lease) then", costs},
	{"shared/readers.lua", "return" + leftOut, costs},
	{"shared/readers.lua", "call('UNLINK', READERS, LEASES)" + leftOut, dead},
	{"shared/readers.lua", "if not (left ~= -2 or last[1]) then", dead},
	{"shared/readers.lua", "if left ~= -2 then", dead},
	{"shared/readers.lua", "if last[1] then", dead},
	{"shared/serve.lua", "readers_end()  -- clears away the dead" + leftOut, costs},
	{"shared/reply.lua", "local left, who = 1, writer", "it is set on either way"},
	{"shared/reply.lua", "left = last - ms or 0", "without a writer there is a reader, but behind a thousand dead waiters"},
	{"shared/reply.lua", "left = last and last - ms", "without a writer there is a reader, but behind a thousand dead waiters"},
	{"shared/reply.lua", "left = last and last - ms or 1", "without a writer there is a reader, but behind a thousand dead waiters"},
	{"shared/reply.lua", "if first then", "it asks again when its own lease would be over, which its heartbeats come before"},
	{"shared/serve.lua", "local head = call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', i, 2)[1]", first},
	{"shared/serve.lua", "local head = call('ZRANGEBYSCORE', QUEUE, '0', '+inf', 'LIMIT', i, 1)[1]", first},
	{"shared/serve.lua", "limit = call('ZREVRANGEBYSCORE', QUEUE, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 2)[2]", first},
	{"shared/serve.lua", "limit = call('ZREVRANGEBYSCORE', QUEUE, '0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]", first},
	{"shared/serve.lua", "if owed then", costs},
	{"shared/serve.lua", "if writer then", costs},
	{"shared/serve.lua", "local front = call('ZRANGE', QUEUE, 0, 2, 'WITHSCORES')", first},
}

// reason says why a mutant is as good as the original, or "".
func (m mutant) reason() string {
	for _, e := range equivalences {
		if e.file == m.file && e.change == m.change() {
			return e.reason
		}
	}
	return ""
}
