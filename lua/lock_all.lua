-- Acquires several locks, or none of them: each has to be free; if the claim reads, others may read it, too.
--
-- KEYS   for each: lock; leases
-- ARGV   for each: claim; its number; its slot; lease, ms; time to live of the keys, ms
-- Reply  the token of all, or 0 if one cannot be had so, or may have been had by an earlier run

--#include clock.lua
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local seen = {}
for i = 1, #KEYS / 2 do
  local lock, leases = unpack(KEYS, 2 * i - 1, 2 * i)
  local claim, number, slot = unpack(ARGV, 5 * i - 4, 5 * i - 2)
  local s = call('HMGET', lock, 'owner', 'fence', slot)
  local owner, fence, record = s[1] or '', s[2] or '', s[3] or ''
  local shares = owner == SHARED and string.sub(claim, 1, 2) == READ and fence <= now and call('PTTL', leases) > 0
  if record >= number or not shares and (owner ~= '' or fence >= now) then
    return 0
  end
  seen[i] = s
end
for i, s in ipairs(seen) do
  local lock, leases = unpack(KEYS, 2 * i - 1, 2 * i)
  local claim, number, slot, lease, ttl = unpack(ARGV, 5 * i - 4, 5 * i)
  local shares = s[1] == SHARED
  if shares then
    call('ZADD', leases, ms + lease, claim)
    call('HSET', lock, 'fence', now, slot, number .. ' ' .. now .. ' held 1')
    call('PEXPIRE', leases, math.max(ttl, call('PTTL', leases)))
  else
    call('HSET', lock, 'owner', claim, 'lease', lease, 'fence', now)
  end
  call('PEXPIRE', lock, math.max(ttl, call('PTTL', lock)))
  if s[2] and not s[3] then -- as in lock.lua
    --#include sweep.lua
    sweep(lock, shares)
  end
end
return now
