-- Ends a write hold, or withdraws a waiting writer, and refuses requests of the claim that arrive later. Hands the lock over to the
-- next in line in the same step.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim
--        2 its tombstone "<number> <s> ended", with the server's time of the grant, if that was less than a minute ago and the hold was
--        not re-entered; otherwise its number
--        3 its slot  optional: 4 prefix of the wake channels, default "rwlock:wake:"
-- Reply  code or {code, more, wake, failure}, see shared/reply.lua; code: 1 released  2 released by an earlier run  0 there was no hold

local owner, record
if #ARGV[2] > 12 then
  local seen = redis.call('HMGET', LOCK, 'owner', ARGV[3])
  owner, record = seen[1], seen[2]
  if record and record > ARGV[2] and string.sub(record, 1, 12) ~= string.sub(ARGV[2], 1, 12) then
    owner = nil -- the release comes late, and the slot was used again: shared/end.lua leaves it as it is
  end
end
if owner == ARGV[1] then
  -- Nobody waits. If the server is out of memory, this fails, and the general path releases the lock.
  if type(redis.pcall('HSET', LOCK, 'owner', '', ARGV[3], ARGV[2])) == 'number' then
    return 1
  end
end

--#include clock.lua
if owner == ARGV[1] .. ' +' then
  --#include handover.lua
end
local CHANNELS = ARGV[4] or WAKE
--#include state.lua
--#include leases.lua
--#include holders.lua
--#include serve.lua
--#include end.lua

if holder ~= claim then
  return give_up()
end
local until_ms = ends()
vacate()
return release(until_ms)
