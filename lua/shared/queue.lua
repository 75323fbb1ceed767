-- Joining the queue, or not. A waiter's ticket counts up while anyone waits; a reader's is less by 10^12, so that readers
-- sort before writers, and each mode in order of arrival.

-- A value of more than 64 bytes makes the server keep a hash as a table from the start. As the list that it keeps a small
-- one as, each look at a waiter would cost more the more of them there are (hash-max-listpack-value in redis.conf).
local LONG = string.rep('0', 64)

-- Puts the caller into the queue, or notes that it still waits there. Returns, to a writer, how many are in front; and, if
-- it comes directly behind another that lives, how long that one can be in its way: until then it has nothing to ask for.
local function enqueue(mode, lease, writer)
  local last = call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')
  local seen = call('HMGET', WAITERS, hold, 'ticket', 'kept', last[1] or '')
  local deadline, left = string.format('%d', ms + lease), nil
  local rank = seen[1] and call('ZRANK', QUEUE, hold)
  if rank then
    call('HSET', WAITERS, hold, deadline)
  else
    local ticket = string.format('%d', math.max(seen[2] or 0, last[2] or 0) + 1)
    call('HSET', WAITERS, hold, deadline, 'ticket', LONG .. ticket)
    if mode == 'read' then
      call('ZADD', QUEUE, 'NX', ticket - 1000000000000, hold)
      if writer then
        call('HSET', WAITERS, 'owed', 'all')
      end
    elseif call('ZADD', QUEUE, 'NX', ticket, hold) == 1 then
      rank = call('ZCARD', QUEUE) - 1
      left = rank > 0 and tonumber(last[2]) > 0 and seen[4] and seen[4] - ms
    else
      rank = call('ZRANK', QUEUE, hold)
    end
  end
  -- Both keys are known to live until then; but the queue may have been evicted, and is new.
  if not last[1] or not seen[3] or seen[3] < deadline then
    call('HSET', WAITERS, 'kept', ms + keep(QUEUE, WAITERS, tonumber(lease)))
  end
  return rank, left and left > 0 and left
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
