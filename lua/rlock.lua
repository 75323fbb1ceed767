-- Takes the lock for reading; or queues for it; or, sent again by a waiter, keeps its place and asks for news.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 to 7 as lock.lua  8 the write claim of the same owner, or ""
-- Reply  as lock.lua

--#include clock.lua
local seen = call('HMGET', KEYS[1], 'owner', 'fence', 'protocol', ARGV[3])
local owner, fence, protocol, record = seen[1] or '', seen[2], seen[3] or PROTOCOL, seen[4]

if protocol == PROTOCOL and (not record or record < ARGV[2]) and (not fence or fence <= now) then
  local enters = owner == ''
  if enters then
    -- Nobody holds the lock, and nobody waits for it.
    if fence then
      call('HSET', KEYS[1], 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    else
      call('HSET', KEYS[1], 'protocol', PROTOCOL, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    end
    -- As in lock.lua.
    if ARGV[5] ~= SHORT or not fence or fence < time[1] then
      call('PEXPIRE', KEYS[1], ARGV[5])
    end
  elseif owner == 'shared' then
    -- There are other readers, unless the last has left, and nobody waits.
    local left = call('PTTL', KEYS[2])
    if left > 0 then
      enters = true
      call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
      call('HSET', KEYS[1], 'fence', now, ARGV[3], ARGV[2] .. ' ' .. now .. ' held 1')
      if left < ARGV[5] - SPARE then
        call('PEXPIRE', KEYS[1], ARGV[5])
        call('PEXPIRE', KEYS[2], ARGV[5])
      end
    end
  end
  if enters then
    if fence and not record then
      --#include sweep.lua
      sweep(owner == 'shared')
    end
    return now
  end
end
local CHANNELS = ARGV[6]
--#include state.lua
--#include leases.lua
--#include serve.lua
--#include reply.lua

if ended() then
  return -1
end
local its_token = held()
if its_token then
  return let_in_before(its_token)
end
local waits = heartbeat()
expire()
serve()
if granted[claim] ~= 'let in' then
  if holder == ARGV[8] and holder ~= '' then
    share({claim}, {ms + ARGV[4]}, token)
    if waits then
      leave_queue(claim)
    end
  elseif waits or waiting > 0 or is_write(holder) then
    return blocked(waits)
  elseif holder == '' then
    enter(claim, read_token(), ARGV[4], now)
  else
    share({claim}, {ms + ARGV[4]}, read_token())
  end
end
return entered()
