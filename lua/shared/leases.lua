-- The sorted set of leases, which counts while several read, or the writer reads.

local function several()
  return holder == 'shared' or readers > 0
end

-- Writes tombstones for readers whose holds were lost.
local function void(ids)
  local slots, numbers = {}, {}
  for i, id in ipairs(ids) do
    slots[i], numbers[i] = parts(id)
  end
  for i, last in ipairs(slots[1] and call('HMGET', LOCK, unpack(slots)) or {}) do
    lose(slots[i], numbers[i], last, 'held')
  end
end
