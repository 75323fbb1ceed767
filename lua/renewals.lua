-- Renews the leases of many claims, each on another lock: of holds, and of delegations.
--
-- KEYS   for each: lock; leases, if the claim reads
-- ARGV   for each: claim; lease, ms; time to live of the keys, ms; how many holds the owner has
-- Reply  for each: 1, or 0 if its lease has ended, or 2 if a run of renew.lua or delegate.lua has to renew it; for a write delegation, the
--        last token for local writers in place of 1

--#include alone.lua
--#include reading.lua

local replies, keys = {}, 0
for i = 1, #ARGV / 4 do
  local claim, for_ms, need, count = unpack(ARGV, 4 * i - 3, 4 * i)
  local reads = string.sub(claim, 1, 2) == READ
  local lock = KEYS[keys + 1]
  local seen = call('HMGET', lock, 'owner', 'lease', 'fence', 'count')
  replies[i] = renew_alone(seen, claim, for_ms, need, count, lock)
  if seen[1] == SHARED and reads then
    local slot, number = string.match(claim, SLOT)
    replies[i] = renew_reading(call('HGET', lock, slot), claim, number, for_ms, need, count, lock, KEYS[keys + 2])
  end
  keys = keys + (reads and 2 or 1)
end
return replies
