-- Ends a read hold, or what was to become one: as unlock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   as unlock.lua
-- Reply  as unlock.lua

if ARGV[5] ~= '' then
  local owner = redis.call('HGET', KEYS[1], 'owner')
  if owner == ARGV[1] then
    -- It is the only reader, and nobody waits. As in unlock.lua.
    if type(redis.pcall('HSET', KEYS[1], 'owner', '', ARGV[3], ARGV[5])) == 'number' then
      return 1
    end
  elseif owner == 'shared' and redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
    -- There may be others. Who comes next finds out.
    redis.call('HSET', KEYS[1], ARGV[3], ARGV[5])
    return 1
  end
end

--#include clock.lua
local CHANNELS = ARGV[4]
--#include state.lua
--#include leases.lua
--#include serve.lua
--#include end.lua

local until_ms = ends()
if holder == claim then
  vacate()
elseif not leave_leases() then
  return give_up()
end
return release(until_ms)
