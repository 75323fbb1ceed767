-- Serving the queue.

-- Takes waiters out of the queue. What is owed to readers goes with the last waiter.
local function dequeue(ids)
  call('ZREM', QUEUE, unpack(ids))
  call('HDEL', WAITERS, unpack(ids))
  if call('EXISTS', QUEUE) == 0 then
    call('UNLINK', WAITERS)
  end
end

-- The first waiting writer that lives, its deadline, and which readers go before it: 'all' of those that wait as soon as
-- the writer that holds the lock is gone, those up to a ticket, or (false) none. Clears away the dead in front of it.
local function first_writer()
  local dead = {}
  for i = 0, STEP do
    local head = call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', i, 1)[1]
    local entry = call('HMGET', WAITERS, 'owed', head or '')
    local lives = entry[2] and tonumber(entry[2]) > ms
    if not head or lives then
      if dead[1] then
        dequeue(dead)
      end
      return head, tonumber(entry[2]), entry[1]
    end
    dead[#dead + 1] = head
  end
  dequeue(dead)
  more = 1
  return nil, nil, false
end

-- Lets in whose turn it is, now that nobody writes. While a writer waits, readers enter only if it is owed to them: they
-- waited when a write phase ended, be it by its release or by its lease, and go before the next writer.
local function serve()
  local writer, deadline, owed = first_writer()
  if more == 1 then
    return
  end

  local limit = owed
  if owed == 'all' or not writer then
    limit = call('ZREVRANGEBYSCORE', QUEUE, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  local ids = limit and call('ZRANGEBYSCORE', QUEUE, '-inf', limit, 'LIMIT', 0, STEP) or {}
  local entered, deadlines = {}, {}
  if ids[1] then
    for i, until_ms in ipairs(call('HMGET', WAITERS, unpack(ids))) do
      if until_ms and tonumber(until_ms) > ms then
        entered[#entered + 1] = ids[i]
        deadlines[#deadlines + 1] = tonumber(until_ms)
      end
    end
    if entered[1] then
      local token = read_token()
      readers_end()  -- clears away the dead
      add_readers(entered, deadlines, token)
      for _, id in ipairs(entered) do
        note(id, token)
      end
    end
    dequeue(ids)
  end
  if ids[STEP] then
    more = 1
    owe(limit)
    return
  end
  if owed and writer then
    call('HDEL', WAITERS, 'owed')
  end

  -- To whoever looks at a key whose time to live was set in the same script, it may be over: before Redis 7.2, the one
  -- goes by the time when the script began, the other by a clock that may have stepped back since.
  if writer and not entered[1] and not readers_end() then
    local front = call('ZRANGE', QUEUE, 0, 1, 'WITHSCORES')
    grant_writer(writer, deadline, front[1] ~= writer and front[2] or front[4])
  end
end
