-- Giving the lock, and telling those that got it.
--
-- Needs  hold   the caller's hold, or its process UUID
--        wakes  what the wake channels of all processes begin with

local granted = {}              -- hold -> token, a string, for all that this script let in
local woken = {}                -- process -> {token, '<handle>:<number>', …}
local more = 0                  -- 1 if this step was not enough to serve all whose turn it is

local function next_token()
  local token = now
  local last = call('SET', FENCE, token, 'PX', FENCE_TTL, 'GET')
  if last and tonumber(last) >= tonumber(token) then
    token = string.format('%.0f', tonumber(last) + 1)
    call('SET', FENCE, token, 'PX', FENCE_TTL)
  end
  return token
end

-- The token of whoever writes: the last one handed out.
local function last_token()
  return call('GET', FENCE) or next_token()
end

-- The token of a read hold: the time, so that no earlier writer has a larger one even if the server has lost the last
-- writes to the fence. Every later writer has.
local function read_token()
  local token = call('GET', FENCE)
  if not token then
    call('SET', FENCE, now, 'PX', FENCE_TTL)
    return now
  end
  if token < now then
    call('SET', FENCE, now, 'KEEPTTL')
    return now
  end
  return token
end

local function note(id, token)
  granted[id] = token
  if id == hold then
    return  -- the reply tells it
  end
  local process = string.sub(id, 1, 36)
  local message = woken[process]
  if not message then
    message = {token}
    woken[process] = message
  end
  message[#message + 1] = string.sub(id, 38)
end

-- Tells those that were let in: by a message to each process; but those of the caller's by its reply, which this returns.
local function wake()
  local process = string.sub(hold, 1, 36)
  for home, message in pairs(woken) do
    if home ~= process then
      call('PUBLISH', wakes .. home, table.concat(message, ' '))
    end
  end
  return woken[process] and table.concat(woken[process], ' ') or ''
end

-- Notes which of the waiting readers go before the next writer: 'all', or those up to a ticket.
local function owe(readers)
  call('HSET', WAITERS, 'owed', readers)
  keep(QUEUE, WAITERS, 0)
end

-- Gives the lock to a waiting writer, until its own deadline as of its last heartbeat: so that the deadline its process
-- knows of is safe however late the message comes. next is the ticket of who waits behind it, if anyone.
local function grant_writer(id, deadline, next)
  local token = next_token()  -- which fails on a key of another type, before anything has changed
  call('SET', WRITER, id, 'PX', deadline - ms)
  note(id, token)
  call('ZREM', QUEUE, id)
  call('HDEL', WAITERS, id)
  if not next then
    call('UNLINK', WAITERS)
  elseif tonumber(next) < 0 then
    owe('all')
  end
end
