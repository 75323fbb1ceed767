-- The lock is not available. Queues the caller, unless it only tries or, as waits says, is queued already. A try is queued, too, while only
-- delegations are in its way under which nobody is known to hold the lock: they are about to be returned. If others
-- wait already, it is queued only if it reads, and all of them do.

-- Puts the caller at the end of the queue. Returns its rank.
local function join()
  if waiting == 0 then
    if call('ZCARD', QUEUE) > 0 then
      call('UNLINK', QUEUE) -- left over from a hash that is gone
    end
    new_queue = true
  end
  local ticket = (f[6] or 0) + 1
  put('ticket', ticket)
  keeps = number .. ' ' .. now .. ' waits ' .. ARGV[4]
  local added = call('ZADD', QUEUE, writes and ticket or ticket - READERS_FIRST, claim)
  waiting = waiting + added
  if writes then
    pending = pending + added
    return waiting - 1
  end
  return waiting - pending - 1
end

local idle = TRY and (waits or waiting == 0 or not writes and pending == 0 and waiting < NEARBY) and (holder == SHARED or string.sub(holder, -2) == ':0')
if idle then
  local used, ids, live = call('HGET', LOCK, 'used') or '', holder, 1
  if holder == SHARED then
    ids, live = call('HGET', LOCK, 'delegated') or '', call('ZCOUNT', LEASES, '(' .. ms, '+inf')
  end
  for id in string.gmatch(ids, '%S+') do
    local lasts = holder == id or tonumber(call('ZSCORE', LEASES, id) or 0) > ms
    if lasts and string.sub(id, -2) == ':0' and not string.find(used, id .. ' ', 1, true) then
      live = live - 1
    end
  end
  idle = live == 0
end
local rank
if TRY and not idle then
  if waits then
    leave_queue(claim)
    ask_first()
  end
elseif waits then
  rank = call('ZRANK', QUEUE, claim)
else
  rank = join()
end

-- How long the waiter directly ahead lives, ms, if the caller has to watch it: a writer watches the writer ahead of it, and a reader that
-- waits while others read watches the first writer. Dead waiters ahead are removed.
local left, _, from, for_ms
if not rank then
  tombstone(slot, number, 'void')
else
  if not writes then
    if not is_write(holder) then
      _, from, for_ms = first_writer()
    end
  else
    local last = math.max(rank - NEARBY, waiting - pending) -- the last rank that is looked at
    while not from and rank > last do
      from, for_ms = waiter(call('ZRANGE', QUEUE, rank - 1, rank - 1)[1])
      rank = from and rank or rank - 1
    end
    left = not from and rank > waiting - pending and 0
  end
  left = from and from / 1000 + for_ms - ms or left
  put(slot, keeps) -- after the removals: a dead waiter ahead may have had this slot
end
local until_ms, whose = ends()
left = left or holder ~= '' and until_ms - ms or 0

-- How many of the waiting readers are served before the next writer.
local first = is_write(holder) and waiting - pending or owed ~= '' and call('ZCOUNT', QUEUE, '-inf', owed - READERS_FIRST) or 0
local ahead = 0
if writes then
  ahead = rank and rank - (waiting - pending) or pending
  ahead = ahead + (ahead > 0 and waiting - pending or first)
elseif pending > 0 and not is_write(holder) and (rank or waiting) >= first then
  ahead = 1
end
-- Delegations that are in the way are recalled. If a try waits for them, their processes are to say whether the lock is held under them.
local mark = idle and '?' or ';'
if holder == SHARED and writes then
  for id in string.gmatch(call('HGET', LOCK, 'delegated') or '', '%S+') do
    note(mark, id)
  end
elseif string.sub(holder, -2) == ':0' and (writes or is_write(holder)) then
  note(mark, holder)
end
conclude()
local message, failure = wake()
local mode = idle and 'idle' or is_write(holder) and 'write' or holder ~= '' and 'read' or ''
return {'', more, message, failure, math.ceil(left), ahead, mode, whose, fence or ''}
