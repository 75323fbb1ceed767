-- Ends a write hold, or what was to become one: takes it out of the queue, and refuses its requests that come late. Whoever is
-- next gets the lock in the same step.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 what wake channels begin with
--        5 what its slot is to say, "<number> <s> ended", with the server's time when it was granted, if that was less than a
--        minute ago and it was not re-entered; or ""
-- Reply  code or {code, more, wake, mute}; code: 1 released  2 released by an earlier run  0 there was no hold

local owner = ARGV[5] ~= '' and redis.call('HGET', LOCK, 'owner')
if owner == ARGV[1] then
  -- Nobody waits. A server that is out of memory refuses, and is asked in the other way.
  if type(redis.pcall('HSET', LOCK, 'owner', '', ARGV[3], ARGV[5])) == 'number' then
    return 1
  end
end

--#include clock.lua
if owner == ARGV[1] .. ' +' then
  --#include handover.lua
end
local CHANNELS = ARGV[4]
--#include state.lua
--#include leases.lua
--#include serve.lua
--#include end.lua

if holder ~= claim then
  return give_up()
end
local until_ms = ends()
vacate()
return release(until_ms)
