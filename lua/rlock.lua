-- Takes the lock for reading; or waits for it; or, waiting already, says that the waiter lives and asks for news.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count
-- ARGV   1 hold  2 what done says before it  3 lease, ms  4 "wait" or "try"  5 what wake channels begin with
--        6 the write hold of the same owner, or ""
-- Reply  as lock.lua

local strings = redis.call('MGET', KEYS[3], KEYS[4])
if strings[1] and strings[1] ~= ARGV[2] then
  return -1
end

-- A lock that nobody has or waits for: the hold is the only one, and the hash ends with it.
if strings[2] and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[5], KEYS[6]) == 0 then
  redis.call('HSET', KEYS[5], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[5], ARGV[3])
  return tonumber(strings[2])
end

local time = redis.call('TIME')
local hold, wakes = ARGV[1], ARGV[5]
--#include shared.lua

local deadline = reader_deadline(hold)
if deadline then
  extend_reader(hold, deadline, ARGV[3])
  return last_token()
end
if call('EXISTS', WRITER, QUEUE) > 0 then
  local waits = ARGV[4] == 'wait'
  local writer = call('GET', WRITER)
  if not writer or writer ~= ARGV[6] then
    if waits then
      enqueue('read', ARGV[3], writer)
    end
    if not writer then
      serve()
    end
    if granted[hold] then
      return granted_reply()
    end
    if waits then
      return blocked()
    end
    if call('EXISTS', WRITER, QUEUE) > 0 then
      refuse_late()
      return blocked()
    end
  end
end
local token = last_token()
add_readers({hold}, {ms + ARGV[3]})
return token
