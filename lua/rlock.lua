-- Acquires the lock for reading, or queues the claim. A waiter sends it again as its heartbeat, as lock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 to 7 as lock.lua  optional: 8 the write claim of the same owner, default ""
-- Reply  as lock.lua

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'fence', ARGV[3])
local owner, fence, record = seen[1] or '', seen[2], seen[3]

if (not record or record < ARGV[2]) and (not fence or fence <= now) then
  local enters = owner == ''
  if enters then
    -- Nobody holds the lock, and nobody waits for it.
    call('HSET', LOCK, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    -- As in lock.lua.
    if not fence or fence < time[1] or (ARGV[6] or SHORT) ~= SHORT then
      call('PEXPIRE', LOCK, ARGV[6] or SHORT)
    end
  elseif owner == 'shared' then
    -- Nobody waits, and there are other readers, unless the last one has left.
    local left = call('PTTL', LEASES)
    if left > 0 then
      enters = true
      call('ZADD', LEASES, time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
      call('HSET', LOCK, 'fence', now, ARGV[3], ARGV[2] .. ' ' .. now .. ' held 1')
      local ttl = ARGV[6] or SHORT
      if left < ttl - SPARE then
        call('PEXPIRE', LOCK, ttl)
        call('PEXPIRE', LEASES, ttl)
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
  if ARGV[7] ~= 'try' then
    --#include queue_reader.lua
  end
end
local CHANNELS, TTL, TRY, WRITER = ARGV[5] or WAKE, ARGV[6] or SHORT, ARGV[7] == 'try', ARGV[8] or ''
--#include state.lua
--#include leases.lua
--#include holders.lua
--#include hold.lua
--#include serve.lua
--#include reply.lua

if ended() then
  return -1
end
local its_token = held()
if its_token then
  return let_in_before(its_token)
elseif holder == claim or string.match(record, '^' .. number .. ' %d+ held') then
  return refuse()
end
local waits = heartbeat()
expire()
serve()
if granted[claim] ~= 'let in' then
  if holder == WRITER and holder ~= '' then
    share({claim}, {ms + ARGV[4]}, token)
    if waits then
      leave_queue(claim)
    end
  elseif waits or waiting > 0 or is_write(holder) then
    --#include blocked.lua
  elseif holder == '' then
    enter(claim, read_token(), ARGV[4], now)
  else
    share({claim}, {ms + ARGV[4]}, read_token())
  end
end
return entered()
