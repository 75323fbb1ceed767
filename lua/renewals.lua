-- Renews the leases of many holds, each of another lock that nobody else holds or waits for.
--
-- KEYS   the locks
-- ARGV   for each: claim; lease, ms; time to live of the keys, ms
-- Reply  for each: 1, or 0 if its lease has ended, or 2 if renew.lua has to renew it

--#include alone.lua

local replies = {}
for i, lock in ipairs(KEYS) do
  replies[i] = renew_alone(ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i], lock)
end
return replies
