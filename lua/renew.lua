-- Renews the lease of a hold: it lasts for at least the lease from now. It never revives a hold that has ended.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms
-- Reply  1, or 0 if there is no such hold

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'lease', 'fence')
if seen[1] == ARGV[1] or seen[1] == ARGV[1] .. ' +' then
  -- Nobody else holds the lock, unless its owner writes and reads: the hash alone says it.
  local lease, since = string.match(seen[2], '^(%d+) ?(%d*)$')
  local left = (since == '' and seen[3] or since) + lease * 1000 - (now - time[2] % 1000) -- a lease counts in whole ms
  if left <= 0 then
    return 0
  end
  local back = left > lease * 1000 + BACK -- the clock was set back: the lease counts again
  local for_ms = back and math.max(lease, ARGV[4]) or ARGV[4]
  -- If the server is out of memory, this fails, and the general path renews the lease.
  if left >= ARGV[4] * 1000 and not back or type(redis.pcall('HSET', LOCK, 'lease', for_ms .. ' ' .. now)) == 'number' then
    local need, new = ARGV[5], false
    --#include keep.lua
    return 1
  end
end
--#include leases.lua

if not held() then
  return 0
end
if holder ~= claim and fence - now > BACK then
  -- The clock was set back, and a lease of before would last for longer. A renewal is for as long as its holder relies on.
  live_for(ARGV[4])
else
  extend(ARGV[4])
end
-- Readers whose leases have ended block nobody while others are live, so that nothing else removes them.
local dead = holder == 'shared' and call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, DEAD) or {}
if dead[1] then
  void(dead)
  call('ZREM', LEASES, unpack(dead))
end
commit(ARGV[5])
return 1
