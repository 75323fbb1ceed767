-- Takes the lock for writing; or waits for it; or, waiting already, says that the waiter lives and asks for news.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 what done says before it  3 lease, ms  4 "wait" or "try"  5 what wake channels begin with
--        6 "keep" if the caller has seen to the fence's time to live of late
--        7 the last hold that the caller's process knows to have ended, or ""
-- Reply  the fencing token, a string, with " sole" behind it if sole tells of the hold, and behind another space the last
--        hold before; or -1, this request is refused: its hold has ended; or what stands in the way:
--        {0, more, wake, ms until it may pay to ask again, waiters ahead, "read" or "write", hold}

--#include clock.lua
local done = redis.call('GET', KEYS[3])
if done and done ~= ARGV[2] then
  return -1
end

local writer = redis.call('GET', KEYS[1])
local busy = writer or redis.call('EXISTS', KEYS[2], KEYS[5], KEYS[6]) > 0
if not busy then
  local sole = redis.call('GET', KEYS[9])
  if not sole then
    local last = redis.call('GET', KEYS[4])
    if (not last or last < now) and tonumber(ARGV[3]) <= 86400000 then
      -- Nobody has to do with the lock but the caller. What says so lives for two days, which is long enough.
      redis.call('SET', KEYS[9], now .. ' write ' .. ARGV[3] .. ' ' .. ARGV[1], 'PX', '172800000')
      return now .. ' sole '
    end
  elseif string.sub(sole, 1, 4) ~= 'past' then
    local hold = ARGV[1]
    --#include base.lua
    --#include sole.lua
    local reply = meet_sole('write', ARGV[3], ARGV[7])
    if reply then
      return reply
    end
    writer = call('GET', WRITER)
    busy = writer or call('EXISTS', READERS) == 1
  end
end

if busy then
  local hold, wakes = ARGV[1], ARGV[5]
  local waits = ARGV[4] == 'wait'
  --#include base.lua
  --#include queue.lua

  if writer and writer ~= hold then
    if waits then
      local rank, left = enqueue('write', ARGV[3], writer)
      if not left then
        left, rank = ask_again(call('PTTL', WRITER), rank)
      end
      return {0, 0, '', left, rank, 'write', writer}
    end
    refuse_late()
    return {0, 0, '', call('PTTL', WRITER), call('ZCARD', QUEUE), 'write', writer}
  end
  --#include grant.lua
  --#include readers.lua
  --#include serve.lua
  --#include reply.lua

  if writer then
    local its_token = last_token()
    extend_writer(ARGV[3])
    return its_token
  end
  -- A phase ended when a lease ran out, and nobody was there to say whose turn is next. A newcomer comes after those whose
  -- turn it was by then.
  if call('ZRANK', QUEUE, hold) then
    enqueue('write', ARGV[3])
  end
  serve()
  if granted[hold] then
    return granted_reply()
  end
  if call('EXISTS', WRITER, QUEUE) > 0 or readers_end() then
    if waits then
      enqueue('write', ARGV[3], call('GET', WRITER))
    else
      refuse_late()
    end
    return blocked()
  end
end

-- Nobody is in the way. SET … GET fails on a key of another type, before anything has changed.
local token, last = now
if ARGV[6] == 'keep' then
  last = redis.call('SET', KEYS[4], token, 'KEEPTTL', 'GET')
  if not last then
    redis.call('PEXPIRE', KEYS[4], '172800000')
  end
else
  last = redis.call('SET', KEYS[4], token, 'PX', '172800000', 'GET')
end
if last and last >= token then
  token = string.format('%.0f', tonumber(last) + 1)
  redis.call('SET', KEYS[4], token, 'KEEPTTL')
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return token
