-- Ends a read hold, or what was to become one: takes it out of the queue, and refuses the request if it comes late.
-- Whoever is next gets the lock in the same step.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count
-- ARGV   1 hold  2 its number  3 what wake channels begin with
-- Reply  as unlock.lua

-- The only reader, and nobody waits.
if redis.call('EXISTS', KEYS[2], KEYS[6]) == 0 and redis.call('HDEL', KEYS[5], ARGV[1]) == 1 then
  redis.call('SET', KEYS[3], ARGV[2], 'PX', '120000')
  return 1
end

local time = redis.call('TIME')
local hold, wakes = ARGV[1], ARGV[3]
--#include shared.lua

local deadline = reader_deadline(hold)
remove_reader(hold)
if deadline then
  call('SET', DONE, ARGV[2], 'PX', DONE_TTL)
  if call('EXISTS', QUEUE) == 0 then
    return 1
  end
  if not call('GET', WRITER) then
    serve()
  end
  return {1, more, wake()}
end
return give_up(ARGV[2], call('GET', WRITER))
