-- Returns a delegation, and grants the lock to the next in line in the same step. Gives the tokens back that no local writer was given,
-- but only while the delegation stands: others may have larger ones since.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 prefix of the wake channels  5 the last token that a local writer was given, or its own; ""
--        if the reply to its grant is not known, and for a read delegation
-- Reply  as unlock.lua

--#include clock.lua
local CHANNELS = ARGV[4]
--#include state.lua
--#include lives.lua
--#include commit.lua
--#include leases.lua
--#include holders.lua
--#include serve.lua
--#include end.lua

local list = writes and '' or call('HGET', LOCK, 'delegated') or ''
local at, to = string.find(list, claim .. ' ', 1, true)
if at then
  put('delegated', string.sub(list, 1, at - 1) .. string.sub(list, to + 1))
end
if holder == claim and writes and alive(since, lease) then
  local used = ARGV[5] ~= '' and ARGV[5] or unreserved()
  if used < fence then
    fence = used
    put('fence', fence)
  end
end
return end_claim()
