-- One of several servers' vote for a claim: as lock.lua, if the server has not forgotten whom it voted for.
--
-- KEYS   1 lock  2 leases  3 queue  4 the server's mark: see mark.lua
-- ARGV   1 to 7 as lock.lua, all of them  8 the generation of the mark  9 the token that is wanted, 16 digits
--        10 the id of the mark  11 only along with the script's text: see run.lua
-- Reply  as lock.lua; if the claim was let in, with the vote's token behind a space, or as the ninth element; -2 if the mark is another

--#include ../quorum/voted.lua
local function acquire()
  --#include ../lock.lua
end
return voted(acquire())
