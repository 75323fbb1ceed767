-- Acquires the lock, or queues the claim, when others hold the lock or wait for it, and whenever the claim is known.

local CHANNELS, TTL, TRY, WRITER = ARGV[5] or WAKE, ARGV[6] or SHORT, ARGV[7] == 'try', ARGV[8] or ''
--#include state.lua
--#include lives.lua

if record < number and not TRY and holder ~= '' and holder ~= claim and holder ~= WRITER and owed == '' and not set_back then
  --#include wait.lua
end
--#include commit.lua
--#include leases.lua
--#include holders.lua
--#include serve.lua

-- Writes what has changed.
local function conclude()
  commit(TTL)
  if record == '' then
    --#include sweep.lua
    sweep(several())
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
  local under = holder == WRITER and holder ~= ''
  if not under and (waits or waiting > 0 or is_write(holder) or holder ~= '' and writes) then
    --#include blocked.lua
  end
  if holder == '' then
    enter(claim, writes and next_token() or read_token(), ARGV[4], now)
  else
    share({claim}, {ms + ARGV[4]}, under and token or read_token())
    if waits then
      leave_queue(claim)
    end
  end
end
conclude()
local message, failure = wake()
if more == 0 and message == '' and failure == '' then
  return fence
end
return {fence, more, message, failure, 0, 0, '', '', fence}
