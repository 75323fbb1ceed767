-- The replies of lock.lua and rlock.lua that say more than a token:
--
--   token  "" if the caller waits, or would have to
--   more   1 if this step left some waiters whose turn it is: serve.lua takes the next step
--   wake   what the step granted to the caller's instance, in the form of a message: see wake in serve.lua
--   failure   why other instances could not be notified, or ""
--   left   ms until it may pay to ask again
--   ahead  how many waiters are served before the caller
--   mode   "write", "read" or "": how the lock is held; or "held": the claim was granted before
--   whose  a claim that holds the lock
--   last   the last token. A caller that waits, and hears of a grant with a smaller one, lost that before

--#include sweep.lua

answered = claim

-- Writes what has changed, and notifies the waiters that it concerns.
local function conclude()
  commit(TTL)
  if record == '' then
    sweep(several())
  end
  return wake()
end

-- Refuses a claim whose grant is over, now and for ever: the call begins again under another number. A claim that held the lock alone is
-- removed by that request, or by any other.
local function refuse()
  leave_leases()
  tombstone(slot, number, 'void')
  commit()
  return -1
end

local function let_in_before(its_token)
  extend(ARGV[4])
  commit(TTL)
  return {its_token, unfinished(), '', '', 0, 0, 'held', '', fence or ''}
end

local function entered()
  local message, failure = conclude()
  if more == 0 and message == '' and failure == '' then
    return fence
  end
  return {fence, more, message, failure, 0, 0, '', '', fence}
end

-- Returns whether the caller is queued. If it is, its lease starts again.
local function heartbeat()
  if has_place() then
    keeps = number .. ' ' .. now .. ' waits ' .. ARGV[4]
  end
  return keeps
end
