-- Reads everything, and changes nothing.
--
-- KEYS   1 lock  2 leases  3 queue
-- Reply  {µs of the server's clock, a string; {field, value, …}; {read claim, deadline in ms, …}; {waiter, ticket, …}}

local time = redis.call('TIME')
return {
  time[1] .. string.sub('00000', #time[2]) .. time[2],
  redis.call('HGETALL', LOCK),
  redis.call('ZRANGE', LEASES, 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES'),
}
