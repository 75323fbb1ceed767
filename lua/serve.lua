-- Lets in more of those whose turn it is, where the step before said that there were more.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 the caller's process UUID  2 what wake channels begin with
-- Reply  {1, more, wake}

--#include clock.lua
local hold, wakes = ARGV[1], ARGV[2]
--#include base.lua
--#include grant.lua
--#include readers.lua
--#include serve.lua

if not call('GET', WRITER) then
  serve()
end
return {1, more, wake()}
