package main

// An equivalence is a mutant that changes nothing that a promise is about.
type equivalence struct {
	file, after string
	reason      string
}

const (
	costs   = "it is the long way to the same, or does again what is done"
	evicted = "it makes a difference only where the server has evicted one of two keys that belong together, which verify/faults does"
	first   = "only the first, or whether there is one, counts; tickets begin at 1"
)

var equivalences = []equivalence{
	{"lock.lua", "if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[5]) >= 0 then",
		costs},
	{"reenter.lua", "return of ~= hold or tonumber(number) <= tonumber(ARGV[4])",
		costs},
	{"reenter.lua", "call('SET', COUNT, count, 'PX', math.max(call('PTTL', WRITER), 2))",
		"the count of a hold that ends within 2 ms outlasts it by one"},
	{"renew.lua", "local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 1, 100)",
		"it clears away one dead reader less at a time"},
	{"renew.lua", "local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, 101)",
		"it clears away one dead reader more at a time"},
	{"rlock.lua", "if call('PTTL', LEASES) <= tonumber(ARGV[3]) then",
		costs},
	{"runlock.lua", "local deadline = call('ZSCORE', LEASES, hold)",
		costs},
	{"runlock.lua", "local deadline = present >= 0 and call('ZSCORE', LEASES, hold)",
		costs},
	{"runlock.lua", "local deadline = present > 1 and call('ZSCORE', LEASES, hold)",
		costs},
	{"unlock.lua", "local first = call('ZRANGE', QUEUE, 1, 0, 'WITHSCORES')",
		costs},
	{"unlock.lua", "local first = call('ZRANGE', QUEUE, 0, 1, 'WITHSCORES')",
		first},
	{"unlock.lua", "local deadline = tonumber(first[2]) > 0 and call('HGET', WAITERS, first[1])",
		"the queue is not empty on this path"},
	{"unlock.lua", "local deadline = first[1] and tonumber(first[2]) >= 0 and call('HGET', WAITERS, first[1])",
		first},
	{"unlock.lua", "local deadline = first[1] and tonumber(first[2]) > 1 and call('HGET', WAITERS, first[1])",
		costs},
	{"shared/base.lua", "if right < ttl then",
		evicted},
	{"shared/base.lua", "if left <= ttl or right < ttl then",
		costs},
	{"shared/base.lua", "if left < ttl or right <= ttl then",
		costs},
	{"shared/base.lua", "if call('PTTL', WRITER) <= tonumber(lease) then",
		costs},
	{"shared/giveup.lua", "if not done or math.abs(tonumber(done)) <= tonumber(number) then",
		costs},
	{"shared/grant.lua", "return tonumber(token) or next_token()",
		"tonumber(false) is nil"},
	{"shared/grant.lua", "keep(QUEUE, WAITERS, 1)",
		"a key lives for at least 1 ms"},
	{"shared/grant.lua", "local first = call('ZRANGE', QUEUE, 0, 1, 'WITHSCORES')",
		first},
	{"shared/grant.lua", "elseif tonumber(first[2]) <= 0 then",
		first},
	{"shared/grant.lua", "elseif tonumber(first[2]) < 1 then",
		first},
	{"shared/queue.lua", "local ticket = call('HINCRBY', WAITERS, 'ticket', 2)",
		"the order is the same"},
	{"shared/queue.lua", "if rank == 0 or call('PTTL', WAITERS) <= tonumber(lease) then",
		costs},
	{"shared/queue.lua", "if rank == 1 or call('PTTL', WAITERS) < tonumber(lease) then",
		evicted},
	{"shared/queue.lua", "for _ = 2, 10 do",
		"it clears away one dead waiter less at a time"},
	{"shared/queue.lua", "for _ = 1, 11 do",
		"it clears away one dead waiter more at a time"},
	{"shared/queue.lua", "if tonumber(deadline) > ms then",
		evicted},
	{"shared/queue.lua", "return 1, rank",
		"to ask again in 1 ms is to ask at once"},
	{"shared/readers.lua", "return deadline > ms and deadline",
		"false is as good as nil"},
	{"shared/readers.lua", "local last = call('ZREVRANGE', LEASES, 0, 1, 'WITHSCORES')",
		first},
	{"shared/readers.lua", "local counts, leases, last = {}, {}, 1",
		"it is less than any deadline"},
	{"shared/readers.lua", "elseif others >= 1 then",
		"that they are one was asked before"},
	{"shared/readers.lua", "elseif not (others > 1) then", evicted},
	{"shared/readers.lua", "elseif others > 2 then", evicted},
	{"shared/readers.lua", "if deadline - ms > tonumber(lease) then", costs},
	{"shared/reply.lua", "local left, who = 1, writer", "it is set on either way"},
	{"shared/reply.lua", "left = last - ms or 0", "without a writer there is a reader, but behind a thousand dead waiters"},
	{"shared/reply.lua", "left = last and last - ms", "without a writer there is a reader, but behind a thousand dead waiters"},
}

// reason says why a mutant is as good as the original, or "".
func (m mutant) reason() string {
	for _, e := range equivalences {
		if e.file == m.file && e.after == m.after {
			return e.reason
		}
	}
	return ""
}
