-- Takes the lock for reading; or waits for it; or, waiting already, says that the waiter lives and asks for news.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 what done says before it  3 lease, ms  4 "wait" or "try"  5 what wake channels begin with
--        6 the write hold of the same owner, or ""  7 as for lock.lua
-- Reply  as lock.lua

--#include clock.lua
local strings = redis.call('MGET', KEYS[3], KEYS[4])
if strings[1] and strings[1] ~= ARGV[2] then
  return -1
end

-- The token is the time, so that no earlier writer has a larger one even if the server has lost the last writes to the
-- fence; or the last one handed out, should the clock be behind.
local token = strings[2]
local later = token and token < now
if later then
  token = now
end

local present = redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[5], KEYS[6])
if present == 0 then
  local sole = redis.call('GET', KEYS[9])
  if not sole and (later or not token and not redis.call('GET', KEYS[4])) and tonumber(ARGV[3]) <= 86400000 then
    -- As in lock.lua. MGET does not fail on a key of another type; GET does.
    redis.call('SET', KEYS[9], now .. ' read ' .. ARGV[3] .. ' ' .. ARGV[1], 'PX', '172800000')
    return now .. ' sole '
  elseif sole and string.sub(sole, 1, 4) ~= 'past' then
    local hold = ARGV[1]
    --#include base.lua
    --#include sole.lua
    local reply = meet_sole('read', ARGV[3], ARGV[7])
    if reply then
      return reply
    end
    present = -1
  end
end
if present == 0 and token then
  -- Nobody has the lock or waits for it: the hold is the only one, and the hash ends with it.
  redis.call('HSET', KEYS[5], ARGV[1], token)
  redis.call('PEXPIRE', KEYS[5], ARGV[3])
  if later then
    redis.call('SET', KEYS[4], token, 'KEEPTTL')
  end
  return token
end

local hold, wakes = ARGV[1], ARGV[5]
local waits = ARGV[4] == 'wait'
--#include base.lua

if present == 2 and token then
  local left = call('PTTL', LEASES)
  if left >= 0 and call('EXISTS', READERS) == 1 and call('HSETNX', READERS, hold, token) == 1 then
    -- There are other readers, and nobody waits.
    call('ZADD', LEASES, ms + ARGV[3], hold)
    if left < tonumber(ARGV[3]) then
      keep(READERS, LEASES, tonumber(ARGV[3]))
    end
    if later then
      call('SET', FENCE, token, 'KEEPTTL')
    end
    return token
  end
end
--#include grant.lua
--#include readers.lua
--#include queue.lua
--#include serve.lua
--#include reply.lua

local deadline = reader_deadline(hold)
if deadline then
  extend_reader(hold, deadline, ARGV[3])
  return string.match(call('HGET', READERS, hold), '^%d+')
end
local writer = call('GET', WRITER)
if not writer then
  -- As in lock.lua.
  if call('ZRANK', QUEUE, hold) then
    enqueue('read', ARGV[3])
  end
  serve()
  if granted[hold] then
    return granted_reply()
  end
  writer = call('GET', WRITER)
end
if writer and writer == ARGV[6] then
  granted[hold] = last_token()
  if call('ZRANK', QUEUE, hold) then
    dequeue({hold})
  end
elseif writer or call('EXISTS', QUEUE) == 1 then
  if waits then
    enqueue('read', ARGV[3], writer)
  else
    refuse_late()
  end
  return blocked()
else
  granted[hold] = read_token()
end
add_readers({hold}, {ms + ARGV[3]}, granted[hold])
return granted_reply()
