-- Reads everything, and changes nothing.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- Reply  {ms of the server's clock, token,
--         write hold, ms left, count,
--         {read hold, token and count, …}, ms left of a reader that is alone, {read hold, deadline, …},
--         {waiter, ticket, …}, {waiter, deadline, …; "owed", …}, sole}; "" where there is none

local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
return {
  ms,
  redis.call('GET', KEYS[4]) or '',
  redis.call('GET', KEYS[1]) or '',
  redis.call('PTTL', KEYS[1]),
  redis.call('GET', KEYS[8]) or '',
  redis.call('HGETALL', KEYS[5]),
  redis.call('PTTL', KEYS[5]),
  redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', KEYS[7]),
  redis.call('GET', KEYS[9]) or '',
}
