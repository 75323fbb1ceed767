-- Renews the leases of many claims, each on another lock: of holds, and of read delegations.
--
-- KEYS   for each: lock; leases
-- ARGV   for each: claim; its number; its slot; lease, ms; time to live of the keys, ms
-- Reply  for each: 1, or 0 if its lease has ended, or 2 if a run of renew.lua or delegate.lua has to renew it

--#include alone.lua
--#include reading.lua

local replies = {}
for i = 1, #KEYS / 2 do
  local lock, leases = KEYS[2 * i - 1], KEYS[2 * i]
  local claim, number, slot, for_ms, need = unpack(ARGV, 5 * i - 4, 5 * i)
  local seen = call('HMGET', lock, 'owner', 'lease', 'fence', slot)
  replies[i] = renew_alone(seen, claim, for_ms, need, lock)
  if replies[i] == 2 then
    replies[i] = renew_reading(seen, claim, number, for_ms, need, lock, leases)
  end
end
return replies
