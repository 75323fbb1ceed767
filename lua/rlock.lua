-- Acquires the lock for reading, or queues the claim. A waiter sends it again as its heartbeat, as lock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 to 7 as lock.lua  optional: 8 the write claim of the same owner, default ""
-- Reply  as lock.lua

--#include acquire.lua
