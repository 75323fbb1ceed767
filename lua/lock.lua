-- Acquires the lock in the mode of the claim, or queues the claim. A waiter sends it again as its heartbeat.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms
--        optional: 5 prefix of the wake channels, default "rwlock:wake:"  6 time to live of the keys, ms: at least the lease and three
--        minutes; default "240000"  7 "wait" (default) or "try"
-- Reply  the fencing token, a string; -1 if the claim has ended, or its grant has; otherwise a list, see docs/protocol.md

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'fence', ARGV[3])
local owner, fence, record = seen[1] or '', seen[2], seen[3]
local TTL = ARGV[6] or SHORT

if not record or record < ARGV[2] then
  local enters = false
  if owner == '' and (not fence or fence < now) then
    -- Nobody holds the lock, and nobody waits for it.
    call('HSET', LOCK, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    -- The first acquisition in each second sets the time to live, for all others in that second.
    if not fence or fence < time[1] or TTL ~= SHORT then
      call('PEXPIRE', LOCK, TTL)
    end
    enters = true
  elseif owner == SHARED and string.sub(ARGV[1], 1, 2) == READ and (not fence or fence <= now) then
    -- Nobody waits, and there are other readers, unless the last one has left.
    local left = call('PTTL', LEASES)
    if left > 0 then
      call('ZADD', LEASES, time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
      call('HSET', LOCK, 'fence', now, ARGV[3], ARGV[2] .. ' ' .. now .. ' held 1')
      if left < TTL - SPARE then
        call('PEXPIRE', LOCK, TTL)
        call('PEXPIRE', LEASES, TTL)
      end
      enters = true
    end
  elseif ARGV[7] ~= 'try' then
    --#include wait.lua
  end
  if enters then
    if fence and not record then
      --#include sweep.lua
      sweep(LOCK, owner == SHARED)
    end
    return now
  end
end

local CHANNELS, TRY = ARGV[5] or WAKE, ARGV[7] == 'try'
--#include serve.lua

-- Writes what has changed.
local function conclude()
  commit(TTL)
  if record == '' then
    --#include sweep.lua
    sweep(LOCK, several() or string.sub(holder, -2) == ':0')
  end
end

if over(number, record) then
  return -1
end
answered = claim
local its_token = held()
if its_token then
  extend(ARGV[4])
  commit(TTL)
  return {its_token, unfinished(), '', '', 0, 0, 'held', '', fence or ''}
elseif holder == claim or string.match(record, '^' .. number .. ' %d+ held') then
  -- The grant is over: the call begins again under another number. This request, or any other, ends the hold in the lock.
  leave_leases()
  tombstone(slot, number, 'void')
  commit()
  return -1
end

local waits = has_place()
if waits then
  keeps = number .. ' ' .. now .. ' waits ' .. ARGV[4] -- its lease starts again
end
expire()
serve()
if granted[claim] ~= 'let in' then
  if waits or waiting > 0 or is_write(holder) or holder ~= '' and writes then
    --#include blocked.lua
  end
  if holder == '' then
    enter(claim, writes and next_token() or read_token(), ARGV[4], now)
  else
    share({claim}, {ms + ARGV[4]}, read_token())
  end
end
conclude()
local message, failure = wake()
if more == 0 and message == '' and failure == '' then
  return fence
end
return {fence, more, message, failure, 0, 0, '', '', fence}
