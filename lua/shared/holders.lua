-- Who holds the lock, and how that changes.

--#include leases.lua

local emptied = false -- whether this step has removed the sorted set of leases

local function set_count(to)
  if count ~= to then
    count = to
    put('count', to)
  end
end

-- The token of a writer: larger than all before it.
local function next_token()
  fence = fence and fence >= now and string.format('%.0f', fence + 1) or now
  put('fence', fence)
  return fence
end

-- The token of a reader: the time, which no earlier writer's token exceeds even if the server lost the last writes to the fence. Every
-- later writer's token is larger.
local function read_token()
  fence = fence and fence > now and fence or now
  put('fence', fence)
  return fence
end

-- Makes a claim the only holder.
local function enter(id, its_token, for_ms, from)
  holder, token, lease, since = id, its_token, for_ms, from
  put('lease', from == its_token and for_ms or for_ms .. ' ' .. from)
  set_count('')
end

-- Makes claims readers, beside the reader that is alone or the others.
local function share(ids, deadlines, their_token)
  if call('ZCARD', LEASES) == 0 then
    new_leases = true
  elseif not several() then
    call('UNLINK', LEASES) -- left over from a hash that is gone
    new_leases = true
  end
  local entries = {}
  if holder ~= '' and not several() then
    -- The reader that was alone gets an entry of its own.
    local its_slot, its_number = parts(holder)
    entries = {math.floor(since / 1000 + lease), holder}
    put(its_slot, its_number .. ' ' .. token .. ' held ' .. (count == '' and '1' or count))
    set_count('')
  end
  holder = SHARED
  for i, id in ipairs(ids) do
    local its_slot, its_number = parts(id)
    put(its_slot, its_number .. ' ' .. their_token .. ' held 1')
    entries[#entries + 1] = deadlines[i]
    entries[#entries + 1] = id
  end
  if new_leases then -- a sorted set that has held so long a member stays a table
    call('ZADD', LEASES, 0, LONG, unpack(entries))
    call('ZREM', LEASES, LONG)
  else
    call('ZADD', LEASES, unpack(entries))
  end
end

-- A write hold has ended: the readers that wait now are owed the next phase.
local function owe()
  if waiting > pending then
    owed = f[6]
  end
end

-- Removes the claim that holds the lock alone.
local function vacate()
  if is_write(holder) then
    owe()
  end
  holder = ''
  set_count('')
end

-- Removes the caller's read hold from the sorted set. Returns whether there was one. The set is counted first: once it is empty, a node
-- that moves the slot refuses to count it.
local function leave_leases()
  local n = several() and call('ZCARD', LEASES)
  if not n or call('ZREM', LEASES, claim) == 0 then
    return false
  end
  if n == 1 then
    holder, emptied = '', true
  end
  return true
end

-- Drops all readers. Beyond one step's worth, their slots stay as they are until sweep removes them.
local function drop_readers()
  void(call('ZRANGE', LEASES, 0, STEP - 1))
  call('UNLINK', LEASES)
  holder, emptied = '', true
end

-- Drops all who hold the lock.
local function evict()
  if several() then
    drop_readers()
  elseif holder ~= '' then
    lose(holder, call('HGET', LOCK, (parts(holder))))
    vacate()
  end
end

-- Ends the holds that block the lock though their leases have ended.
local function expire()
  if ends() <= ms then
    evict()
  end
end
