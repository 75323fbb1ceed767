-- The holds of several readers: the sorted set of leases.

--#include commit.lua

-- What the slots of claims say.
local function records(ids)
  local slots = {}
  for i, id in ipairs(ids) do
    slots[i] = parts(id)
  end
  return slots[1] and call('HMGET', LOCK, unpack(slots)) or {}
end

-- Writes tombstones for readers whose holds were lost.
local function void(ids)
  for i, last in ipairs(records(ids)) do
    lose(ids[i], last)
  end
end

-- The token of the caller's hold, or nil if there is none or its lease has ended.
local function held()
  if holder == claim then
    return alive(since, lease) and token or nil
  end
  local its_token = several() and string.match(record, '^' .. number .. ' (%d+) held')
  if its_token and tonumber(call('ZSCORE', LEASES, claim) or 0) > ms then
    return its_token
  end
end

-- Sets the lease of the caller's hold, counted from now.
local function live_for(for_ms)
  if holder == claim then
    put('lease', for_ms .. ' ' .. now)
  else
    insist()
    call('ZADD', LEASES, ms + for_ms, claim)
  end
end

-- Sets the lease of the caller's hold, counted from now, unless the hold already lasts longer.
local function extend(for_ms)
  local deadline = holder == claim and since / 1000 + lease or tonumber(call('ZSCORE', LEASES, claim))
  if deadline < ms + for_ms then
    live_for(for_ms)
  end
end
