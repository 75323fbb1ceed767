-- Ends a read hold, or withdraws a waiting reader: as unlock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   as unlock.lua
-- Reply  as unlock.lua

if #ARGV[2] > 12 then
  local seen = redis.call('HMGET', LOCK, 'owner', ARGV[3])
  local owner, record = seen[1], seen[2]
  if record and record > ARGV[2] and string.sub(record, 1, 12) ~= string.sub(ARGV[2], 1, 12) then
    owner = nil -- the release comes late, and the slot was used again: shared/end.lua leaves it as it is
  end
  if owner == ARGV[1] then
    -- This is the only reader, and nobody waits. As in unlock.lua.
    if type(redis.pcall('HSET', LOCK, 'owner', '', ARGV[3], ARGV[2])) == 'number' then
      return 1
    end
  elseif (owner == 'shared' or owner == 'shared +' and redis.call('ZREVRANGE', LEASES, 0, 0)[1] ~= ARGV[1])
    and redis.call('ZREM', LEASES, ARGV[1]) == 1 then
    -- Other readers may be left: the next request finds out. A waiter waits for a reader whose lease ends later than this one's.
    redis.call('HSET', LOCK, ARGV[3], ARGV[2])
    return 1
  end
end

--#include clock.lua
local CHANNELS = ARGV[4] or WAKE
--#include state.lua
--#include leases.lua
--#include holders.lua
--#include serve.lua
--#include end.lua

local until_ms = ends()
if holder == claim then
  vacate()
elseif not leave_leases() then
  return give_up()
end
return release(until_ms)
