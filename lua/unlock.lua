-- Ends a hold, or withdraws a waiter, and grants the lock to the next in line.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number, or its tombstone: docs/protocol.md says when  3 its slot
--        optional: 4 prefix of the wake channels, default "rwlock:wake:"
-- Reply  code or {code, more, wake, failure}, see docs/protocol.md; code: 1 released  2 released by an earlier run  0 there was no hold

local owner, record
if #ARGV[2] > DIGITS then
  local seen = redis.call('HMGET', LOCK, 'owner', ARGV[3])
  owner, record = seen[1], seen[2] or ''
  if record > ARGV[2] and string.sub(record, 1, DIGITS) ~= string.sub(ARGV[2], 1, DIGITS) then
    owner = nil -- the slot was used again: see end.lua
  end
end
if owner == ARGV[1] then
  -- Nobody waits. If the server is out of memory, this fails, and the general path releases the lock.
  if type(redis.pcall('HSET', LOCK, 'owner', '', ARGV[3], ARGV[2])) == 'number' then
    return 1
  end
elseif (owner == SHARED or owner == SHARED .. ' +' and redis.call('ZREVRANGE', LEASES, 0, 0)[1] ~= ARGV[1])
  and redis.call('ZREM', LEASES, ARGV[1]) == 1 then
  -- Other readers may be left: the next request finds out. A waiter waits for a reader whose lease ends later than this one's.
  redis.call('HSET', LOCK, ARGV[3], ARGV[2])
  return 1
end

--#include clock.lua
if owner == ARGV[1] .. ' +' and string.sub(owner, 1, 2) == WRITE then
  --#include handover.lua
end
local CHANNELS = ARGV[4] or WAKE
--#include end.lua
return end_claim()
