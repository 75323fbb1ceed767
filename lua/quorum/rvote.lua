-- One of several servers' vote for a reader: as rlock.lua, if the server has not forgotten whom it voted for.
--
-- KEYS   as vote.lua
-- ARGV   1 to 8 as rlock.lua  9 to 12 as vote.lua
-- Reply  as vote.lua

--#include clock.lua
if ARGV[12] then
  --#include ../quorum/run.lua
end
--#include ../quorum/token.lua
local mark = call('HMGET', KEYS[4], 'id', 'generation', 'top', 'old', 'turned')
if not may_vote(mark) then
  return -2
end
local function vote()
  --#include ../rlock.lua
end
return voted(vote(), mark, false)
