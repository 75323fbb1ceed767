-- Takes a lock that nobody has had to do with since the caller's process released it.
--
-- KEYS   1 sole
-- ARGV   1 what sole says then  2 what it is to say, behind the token: " <mode> <lease, ms> <hold>"
--        3… for how long, as the options of SET
-- Reply  the fencing token, a string; or 0, something has happened since, or the clock does not go on: ask as others do
--
-- Safe to run late: the token makes what sole says new each time, so that it never says again what it said before.

--#include clock.lua
local sole = redis.call('GET', KEYS[1])
if sole == ARGV[1] and sole < now then
  redis.call('SET', KEYS[1], now .. ARGV[2], unpack(ARGV, 3))
  return now
end
if sole and string.sub(sole, -#ARGV[2]) == ARGV[2] then
  return string.match(sole, '^%d+')  -- an earlier run took it
end
return 0
