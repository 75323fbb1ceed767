-- Acquires the lock for reading, or queues the claim. A waiter sends it again as its heartbeat, as lock.lua.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 to 7 as lock.lua  optional: 8 the write claim of the same owner, default ""
-- Reply  as lock.lua

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'fence', ARGV[3])
local owner, fence, record = seen[1] or '', seen[2], seen[3]

if (not record or record < ARGV[2]) and (not fence or fence <= now) then
  if owner == '' then
    --#include first.lua
  elseif owner == 'shared' then
    -- Nobody waits, and there are other readers, unless the last one has left.
    local left = call('PTTL', LEASES)
    if left > 0 then
      call('ZADD', LEASES, time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
      call('HSET', LOCK, 'fence', now, ARGV[3], ARGV[2] .. ' ' .. now .. ' held 1')
      local ttl = ARGV[6] or SHORT
      if left < ttl - SPARE then
        call('PEXPIRE', LOCK, ttl)
        call('PEXPIRE', LEASES, ttl)
      end
      if not record then
        --#include sweep.lua
        sweep(true)
      end
      return now
    end
  end
end
--#include acquire.lua
