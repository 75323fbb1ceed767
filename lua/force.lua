-- Drops every hold, and grants the lock to the next in line.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 a claim of the caller's, for this request alone  2 its number  3 its slot  optional: 4 as in unlock.lua
-- Reply  {code, more, wake, mute}, see shared/reply.lua; code: 1 dropped  2 dropped by an earlier run

--#include clock.lua
local CHANNELS = ARGV[4] or WAKE
--#include state.lua
--#include leases.lua
--#include holders.lua
--#include serve.lua
--#include end.lua

if ended() then
  return {2, unfinished(), '', ''}
end
-- This fails on a key of another type, before anything has changed.
call('ZCARD', QUEUE)
call('ZCARD', LEASES)
local until_ms = ends()
if is_write(holder) then
  owe()
end
void_holder()
if several() then
  drop_readers()
end
holder = ''
set_count('')
return release(until_ms)
