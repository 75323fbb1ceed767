-- Ends a hold, or withdraws a waiter, and grants the lock to the next in line.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number, or its tombstone: docs/protocol.md says when  3 its slot
--        optional: 4 prefix of the wake channels, default "rwlock:wake:"
-- Reply  code or {code, more, wake, failure}, see docs/protocol.md; code: 1 released  2 released by an earlier run  0 there was no hold

--#include release.lua
