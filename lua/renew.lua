-- Makes a hold live for at least another lease. A hold that has ended stays so.
--
-- KEYS   1 writer  2 queue  3 done  4 fence  5 readers  6 leases  7 waiters  8 count  9 sole
-- ARGV   1 hold  2 "read" or "write"  3 lease, ms
-- Reply  1, or 0 if there is no such hold

--#include clock.lua
local hold = ARGV[1]
--#include base.lua

if ARGV[2] == 'write' then
  if call('GET', WRITER) ~= hold then
    --#include sole.lua
    return extend_sole(ARGV[3]) and 1 or 0
  end
  extend_writer(ARGV[3])
  return 1
end
--#include readers.lua

local deadline = reader_deadline(hold)
if not deadline then
  --#include sole.lua
  return extend_sole(ARGV[3]) and 1 or 0
end
extend_reader(hold, deadline, ARGV[3])

-- Readers that died among others that live are in nobody's way, so nobody else clears them away.
local dead = call('ZRANGEBYSCORE', LEASES, '-inf', ms, 'LIMIT', 0, 100)
if dead[1] then
  call('HDEL', READERS, unpack(dead))
  call('ZREM', LEASES, unpack(dead))
end
return 1
