-- Queues a writer in the common case: a live writer, no delegation, holds the lock, and the last waiter, if there is one, is a live writer.
-- shared/blocked.lua handles all other cases.
local queued = string.sub(owner, -1) == '+' -- someone waits, or the writer also reads
local writer = queued and string.sub(owner, 1, -3) or owner
if string.sub(owner, 1, 1) == 'w' and writer ~= ARGV[1] and string.sub(writer, -2) ~= ':0' then
  local last = queued and call('ZRANGE', QUEUE, -1, -1)[1] or ''
  local its_slot, its_number = string.match(last, '^w:([^:]+:%d+):(%d+)')
  local h = call('HMGET', LOCK, 'lease', 'pending', 'ticket', its_slot or ARGV[3])
  local at = now - time[2] % 1000 -- a lease counts in whole ms
  local lease, since = h[1] or '0', fence
  if #lease > 17 then -- "<ms> <µs>"
    lease, since = string.sub(lease, 1, -18), string.sub(lease, -16)
  end
  local left = since + lease * 1000 - at
  if left > lease * 1000 + BACK then
    left = 0 -- the clock was set back
  end
  local kept = false -- whether the waiter in front has set the time to live within this second
  if queued and left > 0 then
    local its_record = its_slot and h[4] or ''
    local from, for_ms = string.sub(its_record, 14, 29), string.match(its_record, '^ waits (%d+)$', 30)
    left = for_ms and string.sub(its_record, 1, 12) == its_number and from + for_ms * 1000 - at or 0
    kept = for_ms and from >= time[1] and (ARGV[6] or SHORT) == SHORT
  elseif left > 0 and call('ZCARD', QUEUE) > 0 then
    left = 0 -- the queue is left over from a hash that is gone
  end
  if left > 0 then
    local ticket = string.format('%d', (h[3] or 0) + 1)
    local waits = ARGV[2] .. ' ' .. now .. ' waits ' .. ARGV[4]
    local added = call('ZADD', QUEUE, ticket, ARGV[1])
    if queued then
      call('HSET', LOCK, 'pending', (tonumber(h[2] or '') or 0) + added, 'ticket', ticket, ARGV[3], waits)
    else
      call('HSET', LOCK, 'owner', owner .. ' +', 'pending', 1, 'ticket', ticket, ARGV[3], waits)
    end
    if not kept then
      local ttl, need = call('PTTL', LOCK), ARGV[6] or SHORT
      local short = ttl < need - SPARE
      if short then
        ttl = need
        call('PEXPIRE', LOCK, ttl)
        call('PEXPIRE', LEASES, ttl)
      end
      if short or not queued then
        call('PEXPIRE', QUEUE, ttl)
      end
    end
    if not record then
      --#include sweep.lua
      sweep(true)
    end
    return {'', 0, '', '', math.ceil(left / 1000), queued and call('ZCARD', QUEUE) - 1 or 0, 'write', writer, fence or ''}
  end
end
