-- Sets the reentrancy count and the lease of a hold. It never revives a hold that has ended.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms  6 prefix of the wake channels
--        7 count  8 number of this request, which grows  9 "longer": never shorten the lease; "set": shorten it, too
-- Reply  {code, 0, wake, failure}; code: 1, or 0 if there is no such hold

local CHANNELS = ARGV[6]
--#include leases.lua
--#include wake.lua

local its_token = held()
if not its_token then
  return {0, 0, '', ''}
end
-- The number of the request that set the count. A reader among several that was never re-entered has only its count there, 1.
local last = string.match(holder == claim and count or record, ' (%d+)$')
if not last or tonumber(last) <= tonumber(ARGV[8]) then
  if holder == claim then
    put('count', ARGV[7] .. ' ' .. ARGV[8])
  else
    put(slot, number .. ' ' .. its_token .. ' held ' .. ARGV[7] .. ' ' .. ARGV[8])
  end
  if ARGV[9] == 'set' then
    live_for(ARGV[4])
    ask_first()
  else
    extend(ARGV[4])
  end
end
commit(ARGV[5])
return {1, 0, wake()}
