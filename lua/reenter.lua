-- Sets the reentrancy count of a hold, and makes it live for at least another lease. A hold that has ended stays so.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 "read" or "write"  3 count  4 number of this request, which grows  5 lease, ms; 0 to leave it
-- Reply  1, or 0 if there is no such hold

--#include clock.lua
local hold = ARGV[1]
--#include base.lua
--#include sole.lua

-- What is stored is a count, and the number of the request that set it, behind what tells whose it is: an older request
-- changes nothing.
local function is_news(stored, whose)
  local first, number = string.match(stored or '', '^(%S+) %d+ (%d+)$')
  return first ~= whose or tonumber(number) < tonumber(ARGV[4])
end
local count = ' ' .. ARGV[3] .. ' ' .. ARGV[4]

if ARGV[2] == 'write' then
  if call('GET', WRITER) ~= hold and not open_sole(ARGV[2]) then
    return 0
  end
  extend_writer(ARGV[5])
  if is_news(call('GET', COUNT), hold) then
    call('SET', COUNT, hold .. count, 'PX', math.max(call('PTTL', WRITER), 1))
  end
  return 1
end
--#include readers.lua

local deadline = reader_deadline(hold) or open_sole(ARGV[2]) and reader_deadline(hold)
if not deadline then
  return 0
end
extend_reader(hold, deadline, ARGV[5])
local stored = call('HGET', READERS, hold)
local token = string.match(stored, '^%S+')
if is_news(stored, token) then
  call('HSET', READERS, hold, token .. count)
end
return 1
