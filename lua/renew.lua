-- Renews the lease of a hold: it lasts for at least the lease from now. It never revives a hold that has ended.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms
-- Reply  1, or 0 if there is no such hold

--#include clock.lua
--#include state.lua
if holder == claim and not set_back then
  -- Nobody else holds the lock, unless its owner writes and reads: the hash alone says it.
  local left = since / 1000 + lease - ms
  if left <= 0 then
    return 0
  end
  -- If the server is out of memory, this fails, and the general path renews the lease.
  if left >= tonumber(ARGV[4]) or type(redis.pcall('HSET', LOCK, 'lease', ARGV[4] .. ' ' .. now)) == 'number' then
    if call('PTTL', LOCK) < ARGV[5] - SPARE then
      for _, key in ipairs(KEYS) do
        call('PEXPIRE', key, ARGV[5])
      end
    end
    return 1
  end
end
--#include commit.lua
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
