-- Ends a write hold, or what was to become one: takes it out of the queue, and refuses the request if it comes late.
-- Whoever is next gets the lock in the same step.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 its number  3 what wake channels begin with  4 "keep" if done has long enough to live
--        5 "counted" if the hold may have been re-entered
-- Reply  code or {code, more, wake}; code: 1 released  2 released by an earlier run  0 there was no hold
--        3 released, and sole says so

local writer = redis.call('GET', KEYS[1])
local first = writer == ARGV[1] and redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
if first and not first[1] then
  -- Nobody waits.
  redis.call('DEL', KEYS[1])
  if ARGV[5] == 'counted' and type(redis.pcall('GET', KEYS[8])) == 'string' then
    redis.call('DEL', KEYS[8])
  end
  if ARGV[4] ~= 'keep' or not redis.call('SET', KEYS[3], ARGV[2], 'KEEPTTL', 'GET') then
    redis.call('SET', KEYS[3], ARGV[2], 'PX', '150000')
  end
  return 1
end

--#include clock.lua
local hold, wakes = ARGV[1], ARGV[3]
--#include base.lua

if not first then
  --#include sole.lua
  local reply = release_sole(ARGV[2])
  if reply then
    return reply
  end
end
--#include grant.lua

if first then
  call('DEL', WRITER)  -- which works on a server that is out of memory, as then all does that follows
  if ARGV[5] == 'counted' and type(redis.pcall('GET', COUNT)) == 'string' then
    call('DEL', COUNT)
  end
  if ARGV[4] ~= 'keep' or not call('SET', DONE, ARGV[2], 'KEEPTTL', 'GET') then
    call('SET', DONE, ARGV[2], 'PX', DONE_TTL)
  end
  -- Most often another writer is next. Readers sort before it: none waits.
  local deadline = tonumber(first[2]) > 0 and call('HGET', WAITERS, first[1])
  if deadline and tonumber(deadline) > ms and call('EXISTS', READERS, LEASES) == 0 then
    grant_writer(first[1], deadline, first[4])
    return {1, more, wake()}
  end
end
--#include readers.lua
--#include serve.lua
--#include giveup.lua

if first then
  serve()
  return {1, more, wake()}
end
return give_up(ARGV[2], writer)
