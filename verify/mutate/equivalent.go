package main

// An equivalence is a mutant that changes nothing that a promise is about.
type equivalence struct {
	file, after string // as in a mutant
	reason      string
}

const (
	tuned  = "it is a measure of how much is done at a time, or for how long a thing is kept, and one more is as good"
	first  = "only the first counts"
	places = "no claim has the place 0: tickets begin at 1, and readers have places below zero"
	longer = "what a slot says is longer than a number"
	digits = "a token has more digits than a time in seconds"
	room   = "it is room to begin with"
	bits   = "any number but 32 means 64"
	nanos  = "times of the server are whole microseconds"
	detour = "the long way does the same"
	nobody = "there is nobody in the queue"
	padded = "what is as long as it should be is padded with nothing"
	queued = "a caller that waits is one of those that the queue counts"
	alone  = "there is no writer, and it finds that out"
	grow   = "tickets only have to grow"
	once   = "a waiter looks again once more than it must"
	same   = "it writes what is there already"
	small  = "a token has sixteen digits"
	named  = "a generation has a name"
	ends   = "a set that is still there is given a new time to live"
)

var equivalences = []equivalence{
	{"internal/protocol/claim.go", "b := make([]byte, 0, 81)", room},
	{"internal/protocol/claim.go", "digits := strconv.AppendUint(make([]byte, 0, 21), n, 10)", room},
	{"internal/protocol/reply.go", "list = make([]uint64, 0, 2+strings.Count(s, \" \"))", room},
	{"internal/protocol/reply.go", "list = make([]uint64, 0, 1+strings.Count(s, \" \")) => left out", room},
	{"internal/protocol/request.go", "b := make([]byte, 0, 33)", room},
	{"internal/protocol/reply.go", "if len(s) >= 100 {", tuned},
	{"internal/protocol/inspect.go", "deadline, _ := strconv.ParseFloat(p[1], 65)", bits},
	{"internal/protocol/inspect.go", "place, _ := strconv.ParseFloat(p[1], 65)", bits},
	{"internal/protocol/inspect.go", "} else if o, err := strconv.ParseFloat(d.fields[\"owed\"], 65); err == nil {", bits},
	{"internal/protocol/inspect.go", "owed := math.Inf(-2)", "only the sign counts"},
	{"internal/protocol/inspect.go", "if len(r) != 4 {", "what is no list has no elements"},
	{"internal/protocol/inspect.go", "if err != nil || !ok1 || !ok2 || !ok3 {", "what is no string is no number"},
	{"internal/protocol/inspect.go", "if left := d.left(since, lease); left > 1 {", nanos},
	{"internal/protocol/inspect.go", "if err != nil || left <= 1 || len(f) < 4 || f[2] != \"held\" || !k.is(f[0]) {", nanos},
	{"internal/protocol/inspect.go", "if w.Lease <= 1 {", nanos},
	{"internal/engine/claim.go", "if lease == 1 {", "a renewal for no time asks whether the hold is there, which is what it is sent for"},
	{"internal/engine/engine.go", "clear(o.Send) => left out", "it only lets go of memory sooner"},
	{"internal/engine/lock.go", "case reply.Code == protocol.DoneBefore:", "who does not wait does not look"},
	{"internal/quorum/collect.go", "base := min(max(b.lease.Duration/13, shortest), max(longestCollecting, shortest)) << min(b.attempts, 4)", tuned},
	{"internal/quorum/collect.go", "base := min(max(b.lease.Duration/12, shortest), max(longestCollecting, shortest)) << min(b.attempts, 5)", tuned},
	{"internal/quorum/collect.go", "b.pause = now.Add(b.q.randomBelow(b.collectingTime() / 5))", tuned},
	{"internal/quorum/collect.go", "top, n := int64(1), 0", small},
	{"internal/quorum/mark.go", "answered, voted, top, longest := 0, false, int64(1), time.Duration(0)", small},
	{"internal/quorum/mark.go", "answered, voted, top, longest := 0, false, int64(0), time.Duration(1)", "a lease is longer than a nanosecond"},
	{"internal/quorum/mark.go", "if n > members[best] || n == members[best] && g < best {", named},
	{"internal/quorum/mark.go", "case members[best] >= q.majority:", named},
	{"internal/quorum/mark.go", "return !s.known && waited < q.startPatience() && !(s.failing && waited > q.patience)", tuned},
	{"internal/quorum/mark.go", "if now.Sub(q.since) <= q.patience {", tuned},
	{"internal/quorum/mark.go", "return base64.RawURLEncoding.EncodeToString(sum[:13])", "a name may be longer"},
	{"internal/quorum/vote.go", "if v.number != r.number {", "a vote that is absent has no number"},
	{"internal/dispatch/dispatch.go", "patience = 11 * time.Millisecond", tuned},
	{"internal/dispatch/dispatch.go", "spare = 3", tuned},
	{"internal/dispatch/dispatch.go", "extra = 17", tuned},
	{"internal/dispatch/dispatch.go", "batchBytes = 4097", tuned},
	{"lua/lock.lua", "if not record or record <= ARGV[2] then", longer},
	{"lua/rlock.lua", "if (not record or record <= ARGV[2]) and (not fence or fence <= now) then", longer},
	{"lua/lock.lua", "if not fence or fence <= time[1] or (ARGV[6] or SHORT) ~= SHORT then", digits},
	{"lua/rlock.lua", "if not fence or fence <= time[1] or (ARGV[6] or SHORT) ~= SHORT then", digits},
	{"lua/rlock.lua", "if (not record or record < ARGV[2]) and (not fence or fence < now) then", detour},
	{"lua/lock.lua", "if holder ~= '' or waiting > 0 then", queued},
	{"lua/lock.lua", "if waits or holder ~= '' or waiting > 1 then", "a waiter that is left alone before a free lock was let in"},
	{"lua/rlock.lua", "elseif waiting > 0 or is_write(holder) then", queued},
	{"lua/rlock.lua", "if left >= 0 then", ends},
	{"lua/rlock.lua", "if left > 1 then", detour},
	{"lua/rlock.lua", "call('ZADD', LEASES, time[1] * 1000 + math.ceil(time[2] / 1000) + ARGV[4], ARGV[1])", "it lets a lease live for 1 ms more"},
	{"lua/rlock.lua", "if left <= ttl - SPARE then", tuned},
	{"lua/rlock.lua", "local CHANNELS, TTL, TRY, WRITER = ARGV[5] or WAKE, ARGV[6] or SHORT, ARGV[7] == 'try', ARGV[8]", "no holder is nil"},
	{"lua/runlock.lua", "if #ARGV[2] > 13 then", longer},
	{"lua/runlock.lua", "elseif (owner == 'shared' or owner == 'shared +' and redis.call('ZREVRANGE', LEASES, 0, 1)[1] ~= ARGV[1])", first},
	{"lua/shared/constants.lua", "TURN = 61", tuned},
	{"lua/shared/clock.lua", "local now = #time[2] == 7 and time[1] .. time[2] or time[1] .. string.sub('00000', #time[2]) .. time[2]", padded},
	{"lua/shared/constants.lua", "STEP = 251", tuned},
	{"lua/shared/constants.lua", "NEARBY = 11", tuned},
	{"lua/shared/constants.lua", "DEAD = 101", tuned},
	{"lua/shared/constants.lua", "SAMPLE = 5", tuned},
	{"lua/shared/constants.lua", "MEMORY = 241", tuned},
	{"lua/shared/constants.lua", "MANY = 8", tuned},
	{"lua/shared/blocked.lua", "local ticket = (f[7] or 1) + 1", grow},
	{"lua/shared/blocked.lua", "local ticket = (f[7] or 0) + 2", grow},
	{"lua/shared/blocked.lua", "return rank, 1", "it looks again after a millisecond instead of at once"},
	{"lua/shared/blocked.lua", "return {'', more, told, mute, math.floor(left), ahead, mode, whose, fence or ''}", once},
	{"lua/shared/end.lua", "if waiting >= 0 and not is_write(holder) and ends() < until_ms then", nobody},
	{"lua/shared/end.lua", "if not is_write(holder) and ends() < until_ms then", nobody},
	{"lua/shared/end.lua", "if waiting > 0 and ends() < until_ms then", once},
	{"lua/shared/end.lua", "if waiting > 0 and not is_write(holder) and ends() <= until_ms then", once},
	{"lua/shared/end.lua", "if waiting >= 0 then", "who was behind has been let in, or is dead"},
	{"lua/shared/handover.lua", "local id = call('ZRANGE', QUEUE, 0, 1)[1]", first},
	{"lua/shared/handover.lua", "if alive and last[2] < now and (last[4] or '') == '' then",
		"a lock that is held has a fence"},
	{"lua/shared/handover.lua", "local alive = lease and string.sub(its_record, 1, 12) == its_number and since + lease * 1000 - now >= 0",
		"it lets a lease live for 1 µs more"},
	{"lua/shared/holders.lua", "local last = call('ZREVRANGE', LEASES, 0, 1, 'WITHSCORES')", first},
	{"lua/shared/holders.lua", "void(call('ZRANGE', LEASES, 0, STEP - 2))", tuned},
	{"lua/shared/holders.lua", "return tonumber(last[2]) or 0, last[1]", "a lock that is shared by nobody was freed before"},
	{"lua/shared/queue_writer.lua", "elseif call('ZCARD', QUEUE) > 0 then", "what is over stays so"},
	{"lua/shared/holders.lua", "return tonumber(last[2]) or 1, last[1] or ''", "a lock that is shared by nobody was freed before"},
	{"lua/shared/queue_writer.lua", "left = for_ms and from + for_ms * 1000 - at or 0", "a slot goes on only when its claim has left the queue"},
	{"lua/shared/blocked.lua", "for _ = 2, NEARBY do", tuned},
	{"lua/shared/wake.lua", "return call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 2)[1]", first},
	{"lua/shared/wake.lua", "return call('ZRANGEBYSCORE', QUEUE, '0', '+inf', 'LIMIT', 0, 1)[1]", places},
	{"lua/shared/serve.lua", "local id = next_writer()", alone},
	{"lua/shared/serve.lua", "deadlines[#deadlines + 1] = math.ceil(its_since / 1000 + its_lease)", "it lets a lease live for 1 ms more"},
	{"lua/shared/serve.lua", "local places = limit and limit - READERS_FIRST or '0'", places},
	{"lua/shared/wake.lua", "ask(call('ZRANGE', QUEUE, 0, 1)[1])", first},
	{"lua/shared/serve.lua", "if more == 0 and waiting >= pending and (not writer or owed ~= '') then", "there is no reader to let in, and it finds that out"},
	{"lua/shared/wake.lua", "messages[instance] = (messages[instance] or '') .. ',' .. string.sub(numbers, 3)",
		"the number loses a leading zero, and is read as the same"},
	{"lua/shared/serve.lua", "return waiting >= 0 and string.sub(record, 1, 12) == number and call('ZSCORE', QUEUE, claim)",
		"a slot names a claim that waits only if the queue counts"},
	{"lua/shared/serve.lua", "return string.sub(record, 1, 12) == number and call('ZSCORE', QUEUE, claim)",
		"a slot names a claim that waits only if the queue counts"},
	{"lua/shared/wake.lua", "if pending >= 0 and waiting > pending then", alone},
	{"lua/shared/wake.lua", "if pending > 0 and waiting >= pending then", alone},
	{"lua/shared/hold.lua", "return alive(since, lease) and token", "false is no token either"},
	{"lua/shared/holders.lua", "if is_write(holder) and waiting == 0 and call('ZCARD', QUEUE) >= 0 then", "it removes nothing"},
	{"lua/shared/wake.lua", "if waiting > pending then", alone},
	{"lua/shared/serve.lua", "if waiting >= pending then", "it looks at the type of one key more"},
	{"lua/shared/wake.lua", "if id ~= answered and not granted[id] then", "only a release finds nobody to ask, and it answers nobody"},
	{"lua/shared/serve.lua", "if more == 0 and (not writer or owed ~= '') then", "there is no reader to let in, and it finds that out"},
	{"lua/shared/handover.lua", "local id = call('ZRANGE', QUEUE, 1, 0)[1]", detour},
	{"lua/shared/queue_reader.lua", "if holder ~= ARGV[1] and (written and holder ~= ARGV[8] or (shared or kind == 'r') and plus ~= '+') then", detour},
	{"lua/shared/queue_reader.lua", "if left > 1 then", detour},
	{"lua/shared/queue_reader.lua", "if call('PTTL', QUEUE) <= ttl - SPARE then", tuned},
	{"lua/shared/queue_reader.lua", "local n = (h[2] or 1) + 1", grow},
	{"lua/shared/queue_reader.lua", "local n = (h[2] or 0) + 2", grow},
	{"lua/shared/queue_writer.lua", "local ticket = string.format('%d', (h[3] or 1) + 1)", grow},
	{"lua/shared/queue_writer.lua", "local ticket = string.format('%d', (h[3] or 0) + 2)", grow},
	{"lua/shared/queue_writer.lua", "if queued and left >= 0 then", "it lets a lease live for 1 µs more"},
	{"lua/shared/queue_writer.lua", "if left > 1 then", detour},
	{"lua/shared/queue_writer.lua", "elseif left > 0 then", detour},
	{"lua/shared/queue_writer.lua", "elseif left > 0 and call('ZCARD', QUEUE) >= 0 then", detour},
	{"lua/shared/queue_reader.lua", "elseif plus == '' and left > 0 and call('ZCARD', QUEUE) >= 0 then", detour},
	{"lua/shared/queue_reader.lua", "left = of and of ~= its_number and (h[3] or '') == '' and from + for_ms * 1000 - at or 0",
		"a slot goes on only when its claim has left the queue"},
	{"lua/shared/queue_reader.lua",
		"return {'', 0, '', '', math.floor(left / 1000), written and 0 or 1, written and 'write' or 'read', last[1] or holder,", once},
	{"lua/shared/queue_writer.lua",
		"return {'', 0, '', '', math.floor(left / 1000), queued and call('ZCARD', QUEUE) - 1 or 0, 'write', writer, fence or ''}", once},
	{"lua/renew.lua", "if left <= 1 then", "it lets a lease live for 1 µs less"},
	{"lua/renew.lua", "if call('PTTL', LOCK) <= ARGV[5] - SPARE then", tuned},
	{"lua/renew.lua", "local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, DEAD) or {}",
		"the read hold of a writer blocks nobody once its lease has ended"},
	{"lua/renew.lua", "local dead = holder == 'shared' and call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 1, DEAD) or {}", tuned},
	{"lua/shared/holders.lua", "readers = readers - 2", "a writer has one read claim at most"},
	{"lua/shared/holders.lua", "count = to => left out", "it is emptied twice"},
	{"lua/shared/wake.lua", "if waiting >= 0 then", nobody},
	{"lua/shared/queue_writer.lua", "kept = for_ms and from > time[1] and (ARGV[6] or SHORT) == SHORT", digits},
	{"lua/shared/holders.lua", "if ends() <= ms then", "there are no readers to drop, and it finds that out"},
	{"lua/shared/reply.lua", "return {fence, more, told, mute, 1, 0, '', '', fence}", "who has the lock does not look again"},
	{"lua/shared/queue_writer.lua", "elseif left >= 0 and call('ZCARD', QUEUE) > 0 then", "it stays 0"},
	{"lua/shared/queue_writer.lua", "if string.sub(owner, 2, 1) == 'w' and writer ~= ARGV[1] then", detour},
	{"lua/shared/queue_writer.lua", "if string.sub(owner, 1, 2) == 'w' and writer ~= ARGV[1] then", detour},
	{"lua/shared/queue_writer.lua", "if left > 0 then", detour},
	{"lua/shared/queue_writer.lua",
		"left = for_ms and string.sub(its_record, 1, 12) ~= its_number and from + for_ms * 1000 - at or 0", detour},
	{"lua/shared/queue_writer.lua", "kept = for_ms and from >= time[1] and (ARGV[6] or SHORT) == SHORT => left out", detour},
	{"lua/shared/queue_writer.lua", "local short = ttl <= need - SPARE", tuned},
	{"lua/shared/queue_reader.lua", "left = (last[2] or 1) * 1000 - at", "either is of the past"},
	{"lua/shared/queue_reader.lua", "left = of and of == its_number and (h[3] or '') == '' and from + for_ms * 1000 - at or 1",
		"it asks again after a millisecond, and takes the long way then"},
	{"lua/shared/serve.lua", "pending = 0 => left out", "the queue has as many writers as the hash says, and each was counted down"},
	{"lua/shared/serve.lua", "lose(its_slot, its_number, last, 'waits') => left out", "who was cleared away queues again, with or without another number"},
	{"lua/quorum/mark.lua", "if ARGV[5] >= top then", same},
	{"lua/quorum/token.lua", "if now_largest >= top then", "it keeps further ahead than it must"},
	{"lua/quorum/token.lua", "if now_by == by or now_written ~= written or now_largest ~= largest then", same},
	{"lua/shared/state.lua", "return owed ~= '' or 0", "a server replies 1 for what is true"},
	{"lua/shared/state.lua", "if new_queue or short and waiting >= 0 then", nobody},
	{"lua/shared/holders.lua", "set_count('') => left out", "whoever held the lock before took its count along"},
	{"lua/shared/state.lua", "since = fence", "without a fence there is nobody whose lease counts"},
	{"lua/shared/sweep.lua", "for i = 1, #sample, 3 do", tuned},
	{"lua/shared/sweep.lua", "if call('HLEN', LOCK) >= MANY then", tuned},
	{"lua/shared/sweep.lua", "if s and s + rest + MEMORY <= tonumber(time[1]) then", tuned},
	{"lua/shared/sweep.lua", "local rest = what == 'waits' and lease / 1000 or what == 'held' and keep and math.huge or 1", tuned},
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
