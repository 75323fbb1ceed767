-- One of several servers' vote for a reader: as rlock.lua, if the server has not forgotten whom it voted for.
--
-- KEYS   as vote.lua
-- ARGV   1 to 8 as rlock.lua  9 to 12 as vote.lua
-- Reply  as vote.lua

--#include ../quorum/voted.lua
local function acquire()
  --#include ../rlock.lua
end
return voted(acquire())
