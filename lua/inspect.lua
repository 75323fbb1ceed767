-- Reads the whole lock. It changes nothing.
--
-- KEYS   1 lock  2 leases  3 queue
-- Reply  {µs of the server's clock, a string; {field, value, …}; {read claim, deadline in ms, …}; {waiter, ticket, …}}

local time = redis.call('TIME')
local owner = redis.call('HGET', LOCK, 'owner') or ''

-- The members of a sorted set, if the hash says that it counts.
local function members(key, counts)
  return counts and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or {}
end

return {
  time[1] .. string.sub('00000', #time[2]) .. time[2],
  redis.call('HGETALL', LOCK),
  members(LEASES, owner == SHARED or owner == SHARED .. ' +'),
  members(QUEUE, string.sub(owner, -1) == '+'),
}
