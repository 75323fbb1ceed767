-- Joining the queue, or not. A waiter's ticket counts up while anyone waits; a reader's is less by 10^12, so that readers
-- sort before writers, and each mode in order of arrival.

-- Puts the caller into the queue, or notes that it still waits there. Returns how many are in front.
local function enqueue(mode, lease, writer)
  local rank = call('ZRANK', QUEUE, hold)
  if not rank then
    local ticket = call('HINCRBY', WAITERS, 'ticket', 1)
    if mode == 'read' then
      ticket = ticket - 1000000000000
    end
    call('ZADD', QUEUE, ticket, hold)
    if mode == 'read' and writer then
      call('HSET', WAITERS, 'owed', 'all')
    end
    rank = call('ZRANK', QUEUE, hold)
  end
  call('HSET', WAITERS, hold, ms + lease)
  if rank == 0 or call('PTTL', WAITERS) < tonumber(lease) then
    keep(QUEUE, WAITERS, tonumber(lease))
  end
  return rank
end

-- How long it may take at most until the caller has reason to ask again, left being what remains of the lease of the holder.
-- If the waiter directly in front lives, it sees to what is in front of it; if it dies, waiting or having been granted
-- the lock, nothing tells so but its lease. Clears away the dead directly in front; returns how many remain there, too.
local function ask_again(left, rank)
  for _ = 1, 10 do
    if not rank or rank == 0 then
      return left, rank
    end
    local front = call('ZRANGE', QUEUE, rank - 1, rank - 1)[1]
    local deadline = call('HGET', WAITERS, front)
    if deadline and tonumber(deadline) > ms then
      return math.min(left, deadline - ms), rank
    end
    call('ZREM', QUEUE, front)
    call('HDEL', WAITERS, front)
    rank = rank - 1
  end
  return 0, rank
end

-- A try that found somebody in its way has ended: should it run again, late, it is refused.
local function refuse_late()
  call('SET', DONE, '-' .. string.match(hold, '%d+$'), 'PX', DONE_TTL)
end
