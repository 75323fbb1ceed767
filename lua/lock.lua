-- Acquires the lock in the mode of the claim, or queues the claim. A waiter sends it again as its heartbeat.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms
--        optional: 5 prefix of the wake channels, default "rwlock:wake:"  6 time to live of the keys, ms: at least the lease and three
--        minutes; default "240000"  7 "wait" (default) or "try"
-- Reply  the fencing token, a string; -1 if the claim has ended, or its grant has; otherwise a list, see docs/protocol.md

--#include acquire.lua
