-- Grants the lock to more readers of a crowd, after a step that replied that there were more.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 a claim of the caller  2 its number  3 its slot  optional: 4 as in unlock.lua
-- Reply  {1, more, wake, failure}, see docs/protocol.md

local CHANNELS = ARGV[4] or WAKE
--#include serve.lua

expire()
serve()
commit()
return {1, more, wake()}
