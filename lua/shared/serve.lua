-- The queue: whose turn it is, and how they hear of it. Readers have places before writers, each in order of arrival.

local more = 0          -- 1 if this step was not enough to let in all whose turn it is
local granted = {}      -- whom this step let in, and whom it asked to look again
local grants, asks = {}, {} -- of an instance: the numbers of claims that were let in, and that are to look again
local answered          -- the claim that the reply itself tells what has become of it
local keeps             -- what its slot is to say: that it waits, and is alive

local function note(list, id)
  local instance, _, its_number = string.match(id, '^%l:([^:]+):(%d+):(%d+)')
  list[instance] = (list[instance] or '') .. ' ' .. its_number
end

-- Has a waiter look again: what is in front of it ends earlier than it knows.
local function ask(id)
  if id and id ~= answered and not granted[id] then
    granted[id] = 'asked'
    note(asks, id)
  end
end

-- Tells those that were let in, and those that are to look again: by one message to each instance, "<token> <more> <number> …"
-- and ",<number> …" if any are to look again. Returns the caller's, which its reply tells; and why others could not be told.
local function wake()
  local messages, mute = {}, ''
  for instance, numbers in pairs(grants) do
    messages[instance] = fence .. ' ' .. more .. numbers
  end
  for instance, numbers in pairs(asks) do
    messages[instance] = (messages[instance] or '') .. ',' .. string.sub(numbers, 2)
  end
  local mine = string.match(claim, '^%l:([^:]+)')
  for instance, message in pairs(messages) do
    if instance ~= mine then
      local done = redis.pcall('PUBLISH', CHANNELS .. instance, message)
      if type(done) == 'table' and done.err then
        mute = done.err
      end
    end
  end
  return messages[mine] or '', mute
end

-- Since when a waiter's lease counts, and the lease; or nil if it is over. last is what its slot says.
local function lives(id, its_number, last)
  local of, from, for_ms = string.match(id == answered and keeps or last or '', '^(%d+) (%d+) waits (%d+)$')
  if of == its_number and alive(from, for_ms) then
    return from, for_ms
  end
end

-- Whether the caller's claim has a place in the queue.
local function has_place()
  return waiting > 0 and string.sub(record, 1, 12) == number and call('ZSCORE', QUEUE, claim)
end

local function leave_queue(id)
  call('ZREM', QUEUE, id)
  waiting = waiting - 1
  if is_write(id) then
    pending = pending - 1
  end
end

-- As lives, of one in the queue. Clears it away if it is dead.
local function waiter(id)
  local its_slot, its_number = parts(id)
  local last = call('HGET', LOCK, its_slot)
  local from, for_ms = lives(id, its_number, last)
  if not from then
    lose(its_slot, its_number, last, 'waits')
    leave_queue(id)
  end
  return from, for_ms
end

local function next_writer()
  return call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1)[1]
end

-- The first waiting writer that lives, and its lease. Clears away the dead in front of it.
local function first_writer()
  for _ = 1, STEP do
    local id = pending > 0 and next_writer()
    if not id then
      pending = 0
      return
    end
    local from, for_ms = waiter(id)
    if from then
      return id, from, for_ms
    end
  end
  more = 1
end

-- Notes that a waiter was let in, so that it is told.
local function grant(id)
  granted[id] = 'let in'
  if id ~= answered then
    note(grants, id)
  end
end

-- Lets in waiting readers, a step of them: all, or those up to a ticket.
local function admit(limit)
  local places = limit and limit - READERS_FIRST or '(0'
  local ids = call('ZRANGEBYSCORE', QUEUE, '-inf', places, 'LIMIT', 0, STEP)
  if not ids[1] then
    return
  end
  local entering, deadlines, slots, numbers, from, for_ms = {}, {}, {}, {}, nil, nil
  for i, id in ipairs(ids) do
    slots[i], numbers[i] = parts(id)
  end
  for i, last in ipairs(call('HMGET', LOCK, unpack(slots))) do
    local its_since, its_lease = lives(ids[i], numbers[i], last)
    if its_since then
      from, for_ms = its_since, its_lease
      entering[#entering + 1] = ids[i]
      deadlines[#deadlines + 1] = math.floor(its_since / 1000 + its_lease)
    else
      lose(slots[i], numbers[i], last, 'waits')
    end
  end
  insist()
  if entering[2] or entering[1] and holder ~= '' then
    share(entering, deadlines, read_token())
  elseif entering[1] then
    enter(entering[1], read_token(), for_ms, from)
  end
  for _, id in ipairs(entering) do
    grant(id)
  end
  call('ZREM', QUEUE, unpack(ids))
  waiting = waiting - #ids
  if ids[STEP] then
    more = 1
    owed = limit or f[7]
  end
end

-- Lets in whose turn it is. While a writer waits, readers enter only if it is owed to them: they waited when a write hold ended.
local function serve()
  if waiting == 0 or is_write(holder) then
    return
  end
  if waiting > pending then
    call('ZCARD', LEASES) -- fails on a key of another type, before anything has changed
  end
  local writer, from, for_ms = first_writer()
  if more == 0 and waiting > pending and (not writer or owed ~= '') then
    admit(writer and owed)
    if writer and holder ~= '' and (f[8] or '') ~= '' then
      ask(writer) -- the step before has told it nothing
    end
  end
  if more == 1 then
    return
  end
  owed = ''
  if writer and holder == '' then
    leave_queue(writer)
    enter(writer, next_token(), for_ms, from)
    grant(writer)
  end
end

-- Has the first in line look again.
local function ask_first()
  if waiting > 0 then
    ask(call('ZRANGE', QUEUE, 0, 0)[1])
    if pending > 0 and waiting > pending then
      ask(next_writer())
    end
  end
end
