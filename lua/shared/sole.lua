-- A lock that one process alone has to do with is all in one key, sole, which says one of
--
--   <token> write <lease, ms> <hold>   held since the token was handed out, at that time
--   <token> read <lease, ms> <hold>    likewise
--   <token> free 0 <hold>              and that hold was the last
--   past <holds>                       others come as well: for ten seconds, the other keys are used
--
-- The first three may have, behind a space, the hold that was the last before this process came. Such a hold, and those of
-- the past, have ended; but they may be told of it only now, for as long as an Unlock waits for its answer.
--
-- While sole has a token, none of writer, queue, readers and leases exists.
--
-- Needs  hold  the caller's hold
--        base.lua

-- The token, the mode, the ms left of the hold, the hold, and the one before; or nil.
local function read_sole()
  local token, mode, lease, id, before = string.match(call('GET', SOLE) or '', '^(%d+) (%l+) (%d+) (%S+) ?(%S*)$')
  if token then
    return token, mode, mode == 'free' and 0 or math.floor(token / 1000) + lease - ms, id, before
  end
end

local function write_sole(token, mode, lease, id, before)
  if before ~= '' then
    id = id .. ' ' .. before
  end
  call('SET', SOLE, token .. ' ' .. mode .. ' ' .. lease .. ' ' .. id, 'PX', FENCE_TTL)
end

-- Hands over to the other keys: the hold, if it lives, and those that have ended.
local function leave_sole(token, mode, left, id, before)
  call('SET', FENCE, token, 'PX', FENCE_TTL, 'GET')  -- fails on a key of another type, before anything has changed
  if mode == 'free' then
    before = before == '' and id or id .. ' ' .. before
  elseif left > 0 and mode == 'write' then
    call('SET', WRITER, id, 'PX', left)
  elseif left > 0 then
    call('HSET', READERS, id, token)
    call('PEXPIRE', READERS, left)
  end
  if before ~= '' then
    call('SET', SOLE, 'past ' .. before, 'PX', 10000)
  else
    call('DEL', SOLE)
  end
end

-- Makes the caller's hold live for at least lease more. Returns its token, or nil if sole does not tell of it.
local function extend_sole(lease)
  local token, mode, left, id, before = read_sole()
  if id ~= hold or left <= 0 then
    return
  end
  if left < tonumber(lease) then
    -- Unlike SET, PEXPIRE works on a server that is out of memory, and what follows it in the script does too.
    call('PEXPIRE', SOLE, FENCE_TTL)
    write_sole(token, mode, string.format('%d', ms + lease - math.floor(token / 1000)), id, before)
  end
  return token
end

-- Gives the caller a lock that nobody holds; unless a hold would be forgotten that may be told of its end only now: then
-- it hands over. known is one of the caller's process that has been told. Returns what to reply if the caller has the lock,
-- by this run or an earlier one.
local function meet_sole(mode, lease, known)
  local token, last, left, id, before = read_sole()
  if not token then
    return
  end
  if left > 0 and id == hold then
    return extend_sole(lease)
  end
  local told = id == known
  if left <= 0 and token < now and tonumber(lease) <= 86400000 and (told or before == '' or now - token > 10000000) then
    if not told then
      before = last == 'free' and id or ''
    end
    write_sole(now, mode, lease, hold, before)
    return now .. ' sole ' .. before
  end
  leave_sole(token, last, left, id, before)
end

-- Ends the caller's hold if sole tells of it. Returns what to reply; or nil, and then whatever solelock.lua of the caller
-- may yet run will find something else than it asks for.
local function release_sole(number)
  local token, mode, left, id, before = read_sole()
  if id == hold and left > 0 then
    call('PEXPIRE', SOLE, FENCE_TTL)  -- as in extend_sole
    write_sole(token, 'free', '0', hold, before)
    call('SET', DONE, number, 'PX', DONE_TTL)
    return 3
  end
  local done = call('GET', DONE)
  if (id ~= hold or mode == 'free') and string.find((call('GET', SOLE) or '') .. ' ', ' ' .. hold .. ' ', 1, true) then
    -- The caller goes by what done says of its slot from now on.
    if not done or math.abs(tonumber(done)) < tonumber(number) then
      call('SET', DONE, number, 'PX', DONE_TTL)
    end
    return 2
  end
  if token and left <= 0 then
    leave_sole(token, mode, left, id, before)
  end
end

-- Hands over to the other keys if sole tells of the caller's hold, and it lives. Returns whether it did.
local function open_sole(mode)
  local token, its_mode, left, id, before = read_sole()
  if id == hold and its_mode == mode and left > 0 then
    leave_sole(token, mode, left, id, before)
    return true
  end
end
