-- Shared by the scripts that include it, from the point where the uncontended case is behind them.
--
-- Needs  time   the reply of TIME
--        hold   the caller's hold
--        wakes  what the wake channels of all processes begin with
--
-- A hold is named <process uuid>:<handle>:<number>. A waiting reader's ticket is its arrival in µs less 2^52, a waiting
-- writer's is its arrival in µs: so readers sort before writers, and each mode in order of arrival.

local call = redis.call
local WRITER, QUEUE, DONE, FENCE, READERS, LEASES, WAITERS, COUNT = unpack(KEYS)
local us = time[1] * 1000000 + time[2]
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local process = string.sub(hold, 1, 36)

local STEP = 1000              -- the most that one script lets in, or clears away
local FENCE_TTL = '172800000'  -- two days, ms

local DONE_TTL = '120000'      -- two minutes, ms

local granted = {}             -- hold -> token, for all that this script served
local woken = {}               -- '<token> <handle>:<number> …' for the caller's process
local more = 0                 -- 1 if this step was not enough to serve all whose turn it is

-- Numbers reach Redis by way of %.17g, which is exact for them, but slow.

local function next_token()
  local token = us
  local last = call('SET', FENCE, string.format('%.0f', token), 'PX', FENCE_TTL, 'GET')
  if last and tonumber(last) >= token then
    token = tonumber(last) + 1
    call('SET', FENCE, string.format('%.0f', token), 'PX', FENCE_TTL)
  end
  return token
end

-- The token of a read hold, and of a write hold that is met again: the last one handed out.
local function last_token()
  local token = call('GET', FENCE)
  return token and tonumber(token) or next_token()
end

-- Makes two keys that belong together last for at least ttl ms: either may have been evicted, and is new.
local function keep(one, other, ttl)
  local left, right = call('PTTL', one), call('PTTL', other)
  if left < ttl or right < ttl then
    ttl = math.max(ttl, left, right) + 1000  -- a second more saves the next callers the same commands
    call('PEXPIRE', one, ttl)
    call('PEXPIRE', other, ttl)
  end
end

-- Readers. One reader alone has its count in the hash, and the hash expires with its lease. As soon as there are two,
-- each has its deadline in leases, until all have left.

-- The deadline of a live read hold, or nil.
local function reader_deadline(id)
  local deadline = call('ZSCORE', LEASES, id)
  if deadline then
    deadline = tonumber(deadline)
    return deadline > ms and deadline or nil
  end
  if call('HEXISTS', READERS, id) == 1 then
    return ms + call('PTTL', READERS)
  end
end

-- The last deadline among the live read holds and the hold it belongs to, or nil: then no trace of a reader is left.
local function readers_end()
  local last = call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES')
  if last[1] then
    if tonumber(last[2]) > ms then
      return tonumber(last[2]), last[1]
    end
    call('UNLINK', READERS, LEASES)
    return nil
  end
  local left = call('PTTL', READERS)
  if left ~= -2 then
    return ms + left, call('HKEYS', READERS)[1]
  end
end

-- Makes holds read holds, each with its own deadline: ids is {id, …}, deadlines is {deadline, …}.
local function add_readers(ids, deadlines)
  local counts, leases, last = {}, {}, 0
  if call('EXISTS', LEASES) == 0 then
    local others = call('HLEN', READERS)
    if others == 1 then
      last = ms + call('PTTL', READERS)
      leases = {last, call('HKEYS', READERS)[1]}
    elseif others > 1 then
      call('UNLINK', READERS)  -- leases was evicted: nobody can tell who of these lives
    end
    if others ~= 1 and #ids == 1 then
      call('HSET', READERS, ids[1], '1')
      call('PEXPIRE', READERS, deadlines[1] - ms)
      return
    end
  end
  for i, id in ipairs(ids) do
    counts[#counts + 1] = id
    counts[#counts + 1] = '1'
    leases[#leases + 1] = deadlines[i]
    leases[#leases + 1] = id
    last = math.max(last, deadlines[i])
  end
  call('HSET', READERS, unpack(counts))
  call('ZADD', LEASES, unpack(leases))
  keep(READERS, LEASES, last - ms)
end

-- Makes a live read hold live for at least lease more.
local function extend_reader(id, deadline, lease)
  if deadline - ms >= tonumber(lease) then
    return
  end
  if call('EXISTS', LEASES) == 0 then
    call('PEXPIRE', READERS, lease)
    return
  end
  -- Unlike ZADD, PEXPIRE works on a server that is out of memory, and what follows it in the script does too.
  local ttl = math.max(call('PTTL', LEASES), lease + 1000)
  call('PEXPIRE', READERS, ttl)
  call('PEXPIRE', LEASES, ttl)
  call('ZADD', LEASES, string.format('%.0f', ms + lease), id)
end

-- Makes the write hold live for at least lease more.
local function extend_writer(lease)
  if call('PTTL', WRITER) < tonumber(lease) then
    call('PEXPIRE', WRITER, lease)
    call('PEXPIRE', COUNT, lease)
  end
end

local function remove_reader(id)
  call('HDEL', READERS, id)
  call('ZREM', LEASES, id)
end

-- The queue.

-- Puts the caller into the queue, or notes that it still waits there.
local function enqueue(mode, lease, writer)
  if not call('ZSCORE', QUEUE, hold) then
    local ticket, last = us, nil
    if mode == 'read' then
      ticket = us - 4503599627370496
      last = call('ZREVRANGEBYSCORE', QUEUE, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    else
      last = call('ZREVRANGEBYSCORE', QUEUE, '+inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    end
    if last and tonumber(last) >= ticket then
      ticket = tonumber(last) + 1
    end
    call('ZADD', QUEUE, string.format('%.0f', ticket), hold)
    if mode == 'read' and writer then
      call('HSET', WAITERS, 'owed', 'all')
    end
  end
  call('HSET', WAITERS, hold, string.format('%.0f', ms + lease))
  keep(QUEUE, WAITERS, tonumber(lease))
end

-- Notes which of the waiting readers go before the next writer: 'all', or those up to a ticket.
local function owe(readers)
  call('HSET', WAITERS, 'owed', readers)
  keep(QUEUE, WAITERS, 0)
end

-- Takes waiters out of the queue. What is owed to readers goes with the last waiter.
local function dequeue(ids)
  call('ZREM', QUEUE, unpack(ids))
  call('HDEL', WAITERS, unpack(ids))
  if call('EXISTS', QUEUE) == 0 then
    call('UNLINK', WAITERS)
  end
end

local function note(id, token)
  granted[id] = token
  local home = string.sub(id, 1, 36)
  woken[home] = woken[home] or {string.format('%.0f', token)}
  table.insert(woken[home], string.sub(id, 38))
end

-- Tells the granted: those of the caller's process by the reply, which is what this returns, the others by a message to
-- each process.
local function wake()
  for home, message in pairs(woken) do
    if home ~= process then
      call('PUBLISH', wakes .. home, table.concat(message, ' '))
    end
  end
  return woken[process] and table.concat(woken[process], ' ') or ''
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
  if ids[1] then
    local entered, deadlines = {}, {}
    for i, until_ms in ipairs(call('HMGET', WAITERS, unpack(ids))) do
      if until_ms and tonumber(until_ms) > ms then
        entered[#entered + 1] = ids[i]
        deadlines[#deadlines + 1] = tonumber(until_ms)
      end
    end
    if entered[1] then
      readers_end()  -- clears away the dead
      add_readers(entered, deadlines)
      local token = last_token()
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

  if writer and not readers_end() then
    call('SET', WRITER, writer, 'PX', deadline - ms)
    note(writer, next_token())
    dequeue({writer})
    local first = call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    if first and tonumber(first) < 0 then
      owe('all')
    end
  end
end

-- What to answer a caller that has to wait, or would have to.
local function blocked()
  local left, mode, who = nil, 'write', call('GET', WRITER)
  if who then
    left = call('PTTL', WRITER)
  else
    mode = 'read'
    left, who = readers_end()
    left = left and left - ms
  end
  local first, deadline = first_writer()
  if first and first ~= hold then
    left = math.min(left or deadline - ms, deadline - ms)
  end
  return {0, more, wake(), left or 0, call('ZRANK', QUEUE, hold) or call('ZCARD', QUEUE), mode, who or ''}
end

-- The answer to a caller that this step let in. Others that it let in beside are told by a message, the caller's process
-- included: a token has no room for them.
local function granted_reply()
  process = ''
  wake()
  return granted[hold]
end

-- A try that found somebody in its way has ended: should it run again, late, it is refused.
local function refuse_late()
  call('SET', DONE, '-' .. string.match(hold, '%d+$'), 'PX', DONE_TTL)
end

-- Ends what is no hold: a waiter, or a request that has come and gone, or has yet to come.
local function give_up(number, writer)
  local done = call('GET', DONE)
  if done == number then
    return 2
  end
  if call('ZSCORE', QUEUE, hold) then
    dequeue({hold})
  end
  if not done or math.abs(tonumber(done)) < tonumber(number) then
    call('SET', DONE, '-' .. number, 'PX', DONE_TTL)
  end
  if not writer then
    serve()
  end
  return {0, more, wake()}
end
