-- Holds and their leases.

-- Whether several claims have leases of their own.
local function several()
  return holder == 'shared' or readers > 0
end

-- When the lock is free if nobody does anything, ms, but for the reads of a writer; and a claim that has it until then.
local function ends()
  if holder == 'shared' then
    local last = call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES')
    return tonumber(last[2]) or 0, last[1] or ''
  end
  return holder ~= '' and since / 1000 + lease or 0, holder
end

-- Notes of readers that they were lost.
local function void(ids)
  local slots, numbers = {}, {}
  for i, id in ipairs(ids) do
    slots[i], numbers[i] = parts(id)
  end
  for i, last in ipairs(slots[1] and call('HMGET', LOCK, unpack(slots)) or {}) do
    lose(slots[i], numbers[i], last, 'held')
  end
end

-- Makes claims readers beside the holder: other readers, or a writer that reads.
local function share(ids, deadlines, their_token)
  if call('ZCARD', LEASES) == 0 then
    new_leases = true
  elseif not several() then
    call('UNLINK', LEASES) -- of a hash that is gone
    new_leases = true
  end
  if is_write(holder) and waiting == 0 and call('ZCARD', QUEUE) > 0 then
    call('UNLINK', QUEUE) -- likewise: the plus that the writer gets would make it count
  end
  local entries = {}
  if not is_write(holder) then
    if holder ~= '' and holder ~= 'shared' then
      -- Who read alone is one of several now.
      local its_slot, its_number = parts(holder)
      entries = {math.floor(since / 1000 + lease), holder}
      put(its_slot, its_number .. ' ' .. token .. ' held ' .. (count == '' and '1' or count))
      set_count('')
    end
    holder = 'shared'
  end
  for i, id in ipairs(ids) do
    local its_slot, its_number = parts(id)
    put(its_slot, its_number .. ' ' .. their_token .. ' held 1')
    entries[#entries + 1] = deadlines[i]
    entries[#entries + 1] = id
  end
  if new_leases then -- what has held so long a member does not become a list again
    call('ZADD', LEASES, 0, LONG, unpack(entries))
    call('ZREM', LEASES, LONG)
  else
    call('ZADD', LEASES, unpack(entries))
  end
  if is_write(holder) then
    readers = call('ZCARD', LEASES)
  end
end

-- The token of the caller's hold; or nil if there is none, or its lease is over.
local function held()
  if holder == claim then
    return alive(since, lease) and token or nil
  end
  local deadline = several() and string.sub(record, 1, 12) == number and call('ZSCORE', LEASES, claim)
  if deadline and tonumber(deadline) > ms then
    return string.match(record, '^%d+ (%d+) held')
  end
end

-- Makes the caller's hold live for as long as said from now.
local function live_for(for_ms)
  if holder == claim then
    lease, since = for_ms, now
    put('lease', for_ms .. ' ' .. now)
  else
    insist()
    call('ZADD', LEASES, ms + for_ms, claim)
  end
end

-- Makes the caller's hold live for at least as long as said from now.
local function extend(for_ms)
  local deadline = holder == claim and since / 1000 + lease or tonumber(call('ZSCORE', LEASES, claim))
  if deadline < ms + for_ms then
    live_for(for_ms)
  end
end

-- Notes that the readers that wait go before the next writer: a write hold has ended.
local function owe()
  if waiting > pending then
    owed = f[7]
  end
end

-- Takes the lock from the claim that has it alone, but for the reads of a writer.
local function vacate()
  if is_write(holder) then
    owe()
  end
  holder = readers > 0 and 'shared' or ''
  readers = 0
  set_count('')
end

-- Takes a read hold of the caller's out of several. Returns whether there was one.
local function leave_leases()
  if not several() or call('ZREM', LEASES, claim) == 0 then
    return false
  end
  if holder ~= 'shared' then
    readers = readers - 1
  end
  return true
end

-- Clears away some of the readers that died while others live: they are in nobody's way, so nobody else does it.
local function clear_dead()
  local dead = holder == 'shared' and call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, DEAD) or {}
  if dead[1] then
    void(dead)
    call('ZREM', LEASES, unpack(dead))
  end
end

-- Drops all of several readers. The slots of a great many stay as they are, and are swept away one day.
local function drop_readers()
  void(call('ZRANGE', LEASES, 0, STEP - 1))
  call('UNLINK', LEASES)
  holder = holder ~= 'shared' and holder or ''
  readers = 0
end

-- Ends the holds whose leases have run out.
local function expire()
  if holder ~= '' and holder ~= 'shared' and not alive(since, lease) then
    vacate()
  end
  if holder == 'shared' and ends() <= ms then
    drop_readers()
  end
end
