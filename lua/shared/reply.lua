-- The replies of lock.lua and rlock.lua, where there is more to say than a token:
--
--   {token, or "" to one that waits or would have to; 1 if a step has left some whose turn it is; what the step told the
--    caller's instance, as in a message; why others could not be told; ms until it may pay to ask again; how many are served
--    before; "write", "read" or "": how the lock is held, or "held": the claim was let in before; a claim that holds it}

--#include sweep.lua

answered = claim

-- Writes what has changed, and tells whom it concerns.
local function conclude()
  commit(ARGV[5])
  if record == '' then
    sweep(several())
  end
  return wake()
end

local function let_in_before(its_token)
  extend(ARGV[4])
  commit(ARGV[5])
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

-- Puts the caller at the end of the queue. Returns its rank.
local function join()
  if waiting == 0 then
    if call('ZCARD', QUEUE) > 0 then
      call('UNLINK', QUEUE) -- of a hash that is gone
    end
    new_queue = true
  end
  local ticket = (f[7] or 0) + 1
  put('ticket', ticket)
  keeps = number .. ' ' .. now .. ' waits ' .. ARGV[4]
  local added = call('ZADD', QUEUE, is_write(claim) and ticket or ticket - READERS_FIRST, claim)
  waiting = waiting + added
  if is_write(claim) then
    pending = pending + added
    return waiting - 1
  end
  return waiting - pending - 1
end

-- For a writer that waits directly behind another, for how long that one may live: it sees to what is in front of it. For a
-- reader while others read, for how long the first writer may. Clears away the dead there. Returns the caller's rank, too.
local function in_front(rank)
  local _, from, for_ms
  if not is_write(claim) then
    if not is_write(holder) then
      _, from, for_ms = first_writer()
    end
    return rank, from and from / 1000 + for_ms - ms
  end
  for _ = 1, NEARBY do
    if rank <= waiting - pending then
      return rank
    end
    from, for_ms = waiter(call('ZRANGE', QUEUE, rank - 1, rank - 1)[1])
    if from then
      return rank, from / 1000 + for_ms - ms
    end
    rank = rank - 1
  end
  return rank, 0
end

-- Of the readers that wait, how many go before the next writer.
local function readers_next()
  if is_write(holder) then
    return waiting - pending
  end
  return owed ~= '' and call('ZCOUNT', QUEUE, '-inf', owed - READERS_FIRST) or 0
end

local function blocked(waits)
  local rank
  if waits then
    rank = call('ZRANK', QUEUE, claim)
  elseif ARGV[7] == 'wait' then
    rank = join()
  end

  local left
  if rank then
    rank, left = in_front(rank)
    put(slot, keeps)
  else
    tombstone(slot, number, 'void')
  end
  local until_ms, whose = ends()
  left = left or holder ~= '' and until_ms - ms or 0

  local ahead, first = 0, readers_next()
  if is_write(claim) then
    ahead = rank and rank - (waiting - pending) or pending
    ahead = ahead + (ahead > 0 and waiting - pending or first)
  elseif pending > 0 and not is_write(holder) and (rank or waiting) >= first then
    ahead = 1
  end
  local told, mute = conclude()
  local mode = is_write(holder) and 'write' or holder ~= '' and 'read' or ''
  return {'', more, told, mute, math.ceil(left), ahead, mode, whose}
end
