-- The lock is not available. Queues the caller, unless it only tries or, as waits says, is queued already.

-- Puts the caller at the end of the queue. Returns its rank.
local function join()
  if waiting == 0 then
    if call('ZCARD', QUEUE) > 0 then
      call('UNLINK', QUEUE) -- left over from a hash that is gone
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

-- Returns the caller's rank, and how long the lease of the waiter directly ahead may last, ms, if the caller has to watch it: a writer
-- watches the writer ahead of it, and a reader that waits while others read watches the first writer. Removes dead waiters ahead.
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

-- How many of the waiting readers are served before the next writer.
local function readers_next()
  if is_write(holder) then
    return waiting - pending
  end
  return owed ~= '' and call('ZCOUNT', QUEUE, '-inf', owed - READERS_FIRST) or 0
end

-- Recalls the delegations that are in the way.
local function recall()
  if holder == 'shared' then
    for id in string.gmatch(call('HGET', LOCK, 'delegated') or '', '%S+') do
      note(recalls, id)
    end
  elseif is_delegation(holder) then
    note(recalls, holder)
  end
end

local rank
if waits then
  rank = call('ZRANK', QUEUE, claim)
elseif not TRY then
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
if is_write(claim) or is_write(holder) then
  recall()
end
-- The next token is larger than the last, but that a delegation reserves some, and may give them back: it is not smaller than the time.
local last = fence or ''
if is_write(holder) and is_delegation(holder) and last > now then
  last = now
end
local message, failure = conclude()
local mode = is_write(holder) and 'write' or holder ~= '' and 'read' or ''
return {'', more, message, failure, math.ceil(left), ahead, mode, whose, last}
