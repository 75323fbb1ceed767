-- The replies of lock.lua and rlock.lua, where there is more to say than a token:
--
--   {token, or "" to one that waits or would have to; 1 if a step has left some whose turn it is; what the step told the
--    caller's instance, as in a message; why others could not be told; ms until it may pay to ask again; how many are served
--    before; "write", "read" or "": how the lock is held, or "held": the claim was let in before; a claim that holds it}

--#include sweep.lua

answered = claim

-- Writes what has changed, and tells whom it concerns.
local function conclude()
  commit(TTL)
  if record == '' then
    sweep(several())
  end
  return wake()
end

local function let_in_before(its_token)
  extend(ARGV[4])
  commit(TTL)
  return {its_token, unfinished(), '', '', 0, 0, 'held', ''}
end

local function entered()
  local told, mute = conclude()
  if more == 0 and told == '' and mute == '' then
    return fence
  end
  return {fence, more, told, mute, 0, 0, '', ''}
end

-- Whether the caller waits already. If it does, it is alive.
local function heartbeat()
  if has_place() then
    keeps = number .. ' ' .. now .. ' waits ' .. ARGV[4]
  end
  return keeps
end
