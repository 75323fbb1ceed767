-- Renews the lease of a hold: it lasts for at least the lease from now. It never revives a hold that has ended.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms
-- Reply  1, or 0 if there is no such hold

--#include clock.lua
--#include state.lua
--#include leases.lua

if not held() then
  return 0
end
extend(ARGV[4])
if holder ~= claim then
  clear_dead()
end
commit(ARGV[5])
return 1
