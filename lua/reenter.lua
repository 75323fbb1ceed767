-- Sets the reentrancy count of a hold, and makes it live for at least another lease. A hold that has ended stays so.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count
-- ARGV   1 hold  2 "read" or "write"  3 count  4 number of this request, which grows  5 lease, ms; 0 to leave it
-- Reply  1, or 0 if there is no such hold

local time = redis.call('TIME')
local hold = ARGV[1]
--#include base.lua

-- The count says which request set it, and of which hold it is the count: an older request changes nothing.
local count = ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. hold
local function is_news(stored)
  local number, of = string.match(stored or '', '^%d+ (%d+) (.*)$')
  return of ~= hold or tonumber(number) < tonumber(ARGV[4])
end

if ARGV[2] == 'write' then
  if call('GET', WRITER) ~= hold then
    return 0
  end
  extend_writer(ARGV[5])
  if is_news(call('GET', COUNT)) then
    call('SET', COUNT, count, 'PX', math.max(call('PTTL', WRITER), 1))
  end
  return 1
end
--#include readers.lua

local deadline = reader_deadline(hold)
if not deadline then
  return 0
end
extend_reader(hold, deadline, ARGV[5])
if is_news(call('HGET', READERS, hold)) then
  call('HSET', READERS, hold, count)
end
return 1
