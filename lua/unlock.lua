-- Ends a write hold, or what was to become one: takes it out of the queue, and refuses the request if it comes late.
-- Whoever is next gets the lock in the same step.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count
-- ARGV   1 hold  2 its number  3 what wake channels begin with
-- Reply  code or {code, more, wake}; code: 1 released  2 released by an earlier run  0 there was no hold

if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[8])
  redis.call('SET', KEYS[3], ARGV[2], 'PX', '120000')
  return 1
end

local time = redis.call('TIME')
local hold, wakes = ARGV[1], ARGV[3]
--#include shared.lua

local writer = call('GET', WRITER)
if writer == hold then
  call('DEL', WRITER, COUNT)
  call('SET', DONE, ARGV[2], 'PX', DONE_TTL)
  serve()
  return {1, more, wake()}
end
return give_up(ARGV[2], writer)
