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
