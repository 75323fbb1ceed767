-- Returns a delegation, and grants the lock to the next in line.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 prefix of the wake channels
-- Reply  as unlock.lua

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'delegated', ARGV[3])
local owner, list, record = seen[1], seen[2] or '', seen[3] or ''
local at, to = string.find(list, ARGV[1] .. ' ', 1, true)

-- Whether a waiter need not be told of the return. It asks again when the last lease ends that it was told of. That is right if another
-- lease ends later than this one; and nearly right if all other leases end at most SOON before this one, and none has ended.
local function silent()
  local last = call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES')
  if last[1] ~= ARGV[1] then
    return true
  end
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  return first[1] ~= ARGV[1] and tonumber(first[2]) > time[1] * 1000 + math.floor(time[2] / 1000) and last[2] - first[2] <= SOON
end

if at then
  list = string.sub(list, 1, at - 1) .. string.sub(list, to + 1)
  if string.sub(record, 1, DIGITS) == ARGV[2] and (owner == SHARED or owner == SHARED .. ' +' and silent())
    and call('ZREM', LEASES, ARGV[1]) == 1 then
    -- Other readers may be left, as in unlock.lua.
    call('HSET', LOCK, 'delegated', list, ARGV[3], ARGV[2] .. ' ' .. time[1] .. ' ended')
    return {1, 0, '', ''}
  end
end
local CHANNELS = ARGV[4]
--#include end.lua

if at then
  put('delegated', list)
end
return end_claim()
