-- Ends a read hold, or what was to become one: takes it out of the queue, and refuses the request if it comes late.
-- Whoever is next gets the lock in the same step.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 its number  3 what wake channels begin with  4 "keep" if done has long enough to live
--        5 as for unlock.lua; a read hold has its count in readers, where it goes with the hold
-- Reply  as unlock.lua

local present = redis.call('EXISTS', KEYS[2], KEYS[6])
if present == 0 and redis.call('HDEL', KEYS[5], ARGV[1]) == 1 then
  -- It was the only reader, and nobody waits.
  if ARGV[4] ~= 'keep' or not redis.call('SET', KEYS[3], ARGV[2], 'KEEPTTL', 'GET') then
    redis.call('SET', KEYS[3], ARGV[2], 'PX', '150000')
  end
  return 1
end

--#include clock.lua
local hold, wakes = ARGV[1], ARGV[3]
--#include base.lua

local deadline = present == 1 and call('ZSCORE', LEASES, hold)
if deadline and tonumber(deadline) > ms and call('HDEL', READERS, hold) == 1 then
  -- There are other readers, and nobody waits: leases is the one that is present.
  call('ZREM', LEASES, hold)
  if ARGV[4] ~= 'keep' or not redis.call('SET', KEYS[3], ARGV[2], 'KEEPTTL', 'GET') then
    redis.call('SET', KEYS[3], ARGV[2], 'PX', '150000')
  end
  return 1
end
--#include sole.lua
local reply = present == 0 and release_sole(ARGV[2])
if reply then
  return reply
end
--#include grant.lua
--#include readers.lua
--#include serve.lua
--#include giveup.lua

deadline = reader_deadline(hold)
remove_reader(hold)
if deadline then
  call('SET', DONE, ARGV[2], 'PX', DONE_TTL)
  if not call('GET', WRITER) then
    serve()
  end
  return {1, more, wake()}
end
return present > 0 and release_sole(ARGV[2]) or give_up(ARGV[2], call('GET', WRITER))
