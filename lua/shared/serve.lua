-- The queue: who is next. Readers have places before writers, each in order of arrival.

--#include holders.lua
--#include wake.lua

local keeps -- the new value of the caller's slot, if it waits: its lease starts again

-- The start and the length of a waiter's lease, or nil if it has ended. last is the value of its slot, if it was read already.
local function lives(id, last)
  local its_slot, its_number = parts(id)
  last = id == claim and keeps or last or call('HGET', LOCK, its_slot) or ''
  local of, from, for_ms = string.match(last, '^(%d+) (%d+) waits (%d+)$')
  if of == its_number and alive(from, for_ms) then
    return from, for_ms
  end
end

-- Whether the caller's claim has a place in the queue.
local function has_place()
  return waiting > 0 and string.sub(record, 1, DIGITS) == number and call('ZSCORE', QUEUE, claim)
end

local function leave_queue(id)
  call('ZREM', QUEUE, id)
  waiting = waiting - 1
  if is_write(id) then
    pending = pending - 1
  end
end

-- The lease of a queued waiter, as lives returns it. Removes the waiter if its lease has ended.
local function waiter(id)
  local last = call('HGET', LOCK, (parts(id))) or ''
  local from, for_ms = lives(id, last)
  if not from then
    lose(id, last)
    leave_queue(id)
  end
  return from, for_ms
end

-- The first live writer in the queue, and its lease. Removes the dead writers ahead of it.
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

-- Notes that a waiter was granted the lock, so that it is notified.
local function grant(id)
  granted[id] = 'let in'
  if id ~= answered then
    note(' ', id)
  end
end

-- Grants the lock to waiting readers, to at most STEP of them: to all, or to those up to a ticket.
local function admit(limit)
  local places = limit and limit - READERS_FIRST or '(0'
  local ids = call('ZRANGEBYSCORE', QUEUE, '-inf', places, 'LIMIT', 0, STEP)
  if not ids[1] then
    return
  end
  local entering, deadlines, from, for_ms = {}, {}, nil, nil
  for i, last in ipairs(records(ids)) do
    local its_since, its_lease = lives(ids[i], last or '')
    if its_since then
      from, for_ms = its_since, its_lease
      entering[#entering + 1] = ids[i]
      deadlines[#deadlines + 1] = math.floor(its_since / 1000 + its_lease)
    else
      lose(ids[i], last)
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
    owed = limit or f[6]
  end
end

-- Grants the lock to those whose turn it is. While a writer waits, readers enter only if they are owed the phase: they were waiting
-- when a write hold ended.
local function serve()
  if waiting == 0 or is_write(holder) then
    return
  end
  if waiting > pending and not emptied then
    call('ZCARD', LEASES) -- fails on a key of another type, before anything has changed
  end
  local writer, from, for_ms = first_writer()
  if more == 0 and waiting > pending and (not writer or owed ~= '') then
    admit(writer and owed)
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
