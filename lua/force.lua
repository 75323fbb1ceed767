-- Drops every hold, and lets in whoever is next.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 the caller's process UUID  2 the number of this request  3 what wake channels begin with
-- Reply  {code, more, wake}; code: 1 dropped  2 dropped by an earlier run

--#include clock.lua
local hold, wakes = ARGV[1], ARGV[3]
--#include base.lua
--#include grant.lua
--#include readers.lua
--#include serve.lua
--#include sole.lua

local done = call('GET', DONE)
if done and math.abs(tonumber(done)) >= tonumber(ARGV[2]) then
  return {2, 0, ''}
end
-- These fail on a key of another type, before anything has changed.
call('GET', WRITER)
call('GET', COUNT)
call('GET', FENCE)
call('HLEN', READERS)
call('HLEN', WAITERS)
call('ZCARD', LEASES)
call('ZCARD', QUEUE)
local token, mode, _, id, before = read_sole()
if token and mode ~= 'free' then
  leave_sole(token, mode, 0, id, before)
end
call('UNLINK', WRITER, COUNT, READERS, LEASES)
call('SET', DONE, ARGV[2], 'PX', DONE_TTL)
serve()
return {1, more, wake()}
