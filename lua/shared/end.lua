-- The end of a claim.

--#include serve.lua

-- Writes what has changed. What a long lease had the keys kept for is over with it.
local function finish(at_least)
  local left = commit(at_least)
  if waiting == 0 then
    local need = math.ceil(math.max(ends() - ms, 0)) + SHORT
    if tonumber(left) > need then
      call('PEXPIRE', LOCK, need)
      redis.pcall('PEXPIRE', LEASES, need) -- as in keep.lua
    end
  end
end

-- Finishes the release of the caller's hold, which is no longer in the lock, and grants the lock to the next in line. until_ms is when
-- the last lease would have ended, how what the tombstone says, and at_least the time to live that the keys need.
local function release(until_ms, how, at_least)
  expire()
  serve()
  if string.sub(record, 1, DIGITS) <= number then -- or else the release comes late, and the slot was used again
    tombstone(slot, number, how) -- after the above: see give_up
  end
  if waiting > 0 and not is_write(holder) and ends() < until_ms then
    ask_first()
  end
  finish(at_least)
  return {1, more, wake()}
end

-- Ends a claim that holds nothing: a waiter, or a claim whose request was already answered or has yet to arrive.
local function give_up()
  if over(number, record) then
    local again = string.sub(record, 1, DIGITS) == number and string.match(record, '%l+') == 'ended'
    return {again and 2 or 0, unfinished(), '', ''}
  end
  local behind, was_first
  if has_place() then
    call('ZCARD', LEASES) -- fails on a key of another type, before anything has changed
    local rank = call('ZRANK', QUEUE, claim)
    was_first = rank == 0 or rank == waiting - pending
    leave_queue(claim)
    if writes and waiting > 0 then
      behind = call('ZRANGE', QUEUE, rank, rank)[1]
    end
  end
  expire()
  serve()
  tombstone(slot, number, 'void') -- last: a failover can bring back an earlier claim of the slot, which the above may have let in
  if waiting > 0 then
    ask(behind)
    if was_first then
      ask_first()
    end
  end
  finish()
  return {0, more, wake()}
end

-- Ends the caller's claim, whatever it is.
local function end_claim()
  local until_ms = ends()
  if holder == claim then
    vacate()
  elseif not leave_leases() then
    return give_up()
  end
  return release(until_ms, 'ended')
end
