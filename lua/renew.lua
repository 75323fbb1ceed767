-- Renews the lease of a claim. It always writes, so that replicas can confirm it.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms  6 how many holds the owner has
-- Reply  1, or 0 if there is no such claim

--#include alone.lua
--#include reading.lua
local seen = call('HMGET', LOCK, 'owner', 'lease', 'fence', 'count', ARGV[3])
local done = renew_alone(seen, ARGV[1], ARGV[4], ARGV[5], ARGV[6], LOCK, LEASES, QUEUE)
if seen[1] == SHARED then
  done = renew_reading(seen[5], ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6], LOCK, LEASES)
end
if done < 2 then
  return done
end
--#include renew.lua

if not renew(ARGV[4], ARGV[6]) then
  return 0
end
-- Readers whose leases have ended block nobody while others are live, so that nothing else removes them.
local dead = several() and call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, DEAD) or {}
if dead[1] then
  void(dead)
  call('ZREM', LEASES, unpack(dead))
end
commit(ARGV[5])
return 1
