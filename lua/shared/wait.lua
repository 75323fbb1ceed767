-- Queues a claim in the common cases. A live writer, no delegation, holds the lock, and the last writer that waits, if there is one, is
-- live; or live readers hold it, the first writer that waits is live, and another reader comes. blocked.lua handles all other cases.
local written = is_write(holder)
if written and string.sub(holder, -2) ~= ':0' or not written and not writes and pending > 0 then
  local until_ms, whose = since / 1000 + lease, holder
  if holder == 'shared' then
    whose, until_ms = unpack(call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES'))
  end
  local left = (until_ms or 0) - ms
  local kept = false -- whether the waiter that is watched has set the times to live within this second
  if left > 0 and pending > 0 and (writes or not written) then
    local watched = writes and call('ZRANGE', QUEUE, -1, -1) or call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1)
    local from, for_ms = lives(watched[1] or '')
    left = from and from / 1000 + for_ms - ms or 0
    kept = from and from >= time[1] and TTL == SHORT
  elseif waiting == 0 and call('ZCARD', QUEUE) > 0 then
    left = 0 -- the queue is left over from a hash that is gone
  end
  if left > 0 then
    local n = (f[7] or 0) + 1
    local ticket = string.format('%d', n)
    call('ZADD', QUEUE, writes and ticket or string.format('%d', n - READERS_FIRST), claim)
    call('HSET', LOCK, 'owner', holder .. ' +', 'ticket', ticket, slot, number .. ' ' .. now .. ' waits ' .. ARGV[4],
      unpack(writes and {'pending', string.format('%d', pending + 1)} or {}))
    if not kept then
      local ttl = call('PTTL', LOCK)
      local short = ttl < TTL - SPARE
      if short then
        ttl = TTL
        call('PEXPIRE', LOCK, ttl)
        call('PEXPIRE', LEASES, ttl)
      end
      if short or waiting == 0 then
        call('PEXPIRE', QUEUE, ttl)
      end
    end
    if record == '' then
      --#include sweep.lua
      sweep(true)
    end
    local ahead = writes and waiting or written and 0 or 1
    return {'', 0, '', '', math.ceil(left), ahead, written and 'write' or 'read', whose, fence or ''}
  end
end
