-- One of several servers' vote for a writer: as lock.lua, if the server has not forgotten whom it voted for.
--
-- KEYS   1 lock  2 leases  3 queue  4 the server's mark: see mark.lua
-- ARGV   1 to 7 as lock.lua, all of them  8 ""  9 the generation of the mark  10 the token that is wanted, 16 digits
--        11 the id of the mark
-- Reply  as lock.lua, with the vote's token behind a space, or as a ninth element, if the claim was let in; -2 if the mark is another

--#include clock.lua
--#include ../quorum/token.lua
local mark = call('HMGET', KEYS[4], 'generation', 'longest', 'top', 'old', 'turned', 'id')
if not may_vote(mark) then
  return -2
end
local function vote()
  --#include ../lock.lua
end
return voted(vote(), mark, true)
