-- Renewals that need only the hash of the lock: of a hold that is alone on it.

--#include clock.lua

-- Renews the lease of a claim that holds the lock alone. seen are the fields owner, lease, fence and count of the hash. leases and queue
-- may be nil. If they are given, others may wait. Returns 1, or 0 if the lease has ended, or 2 if the general path has to renew it, as when
-- the number of holds is another. For a write delegation, it returns the last token in place of 1.
local function renew_alone(seen, claim, for_ms, need, count, lock, leases, queue)
  if seen[1] ~= claim and not (leases and seen[1] == claim .. ' +') or (seen[4] or '') ~= (count == '1' and '' or count) then
    return 2
  end
  local lease, since = string.match(seen[2], '^(%d+) ?(%d*)$')
  local left = (since == '' and seen[3] or since) + lease * 1000 - (now - time[2] % 1000) -- a lease counts in whole ms
  if left <= 0 then
    return 0
  end
  local back = left > lease * 1000 + BACK -- the clock was set back: the lease counts again
  for_ms = back and math.max(lease, for_ms) or for_ms
  local longer = left >= for_ms * 1000 and not back
  local value = longer and seen[2] or for_ms .. ' ' .. now -- written in any case: see renew.lua
  -- If the server is out of memory, this fails, and the general path renews the lease.
  local done = 1
  if string.sub(claim, 1, 2) == WRITE and string.sub(claim, -2) == ':0' then
    done = seen[3] < now and now or seen[3]
    if left >= for_ms * 1000 or type(redis.pcall('HSET', lock, 'lease', value, 'fence', done)) ~= 'number' then
      return 2
    end
  elseif type(redis.pcall('HSET', lock, 'lease', value)) ~= 'number' then
    return 2
  end
  if call('PTTL', lock) < need - SPARE then
    for _, key in ipairs({lock, leases, queue}) do
      call('PEXPIRE', key, need)
    end
  end
  return done
end
