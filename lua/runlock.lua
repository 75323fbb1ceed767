-- Ends a read hold, or withdraws a waiting reader: as unlock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   as unlock.lua
-- Reply  as unlock.lua

--#include release.lua
