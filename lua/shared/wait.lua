-- Queues a claim in the common cases. A live writer, no delegation, holds the lock, and a writer that comes finds nobody in the queue, or
-- a live writer at its end; or live readers hold it, the first writer that waits is live, and another reader comes. blocked.lua handles
-- all other cases.
local writes = string.sub(ARGV[1], 1, 2) == WRITE
local written, queued = string.sub(owner, 1, 2) == WRITE, string.sub(owner, -1) == '+'
local holder = queued and string.sub(owner, 1, -3) or owner
if holder ~= ARGV[1] and (written and string.sub(holder, -2) ~= ':0'
  or queued and not writes and string.match(holder, '^2[rs]')) then
  local watched = queued and (writes and call('ZRANGE', QUEUE, -1, -1)
    or not written and call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1))
  local its_slot, its_number = string.match(watched and watched[1] or '', '^2w:([^:]+:%d+):(%d+)')
  local h = call('HMGET', LOCK, 'lease', 'ticket', writes and 'pending' or 'owed', its_slot or ARGV[3])
  local at = now - time[2] % 1000 -- a lease counts in whole ms
  local lease, since = h[1] or '0', fence
  if #lease > 17 then -- "<ms> <µs>"
    lease, since = string.sub(lease, 1, -18), string.sub(lease, -16)
  end
  local left, whose, from, for_ms = since + lease * 1000 - at, holder, nil, nil
  if holder == SHARED then
    whose, left = unpack(call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES'))
    left = (left or 0) * 1000 - at
  elseif left > lease * 1000 + BACK then
    left = 0 -- the clock was set back
  end
  if left > 0 and watched then
    local last = its_slot and h[4] or ''
    from, for_ms = string.match(last, '^' .. (its_number or '') .. ' (%d+) waits (%d+)$')
    left = for_ms and from + for_ms * 1000 - at or 0
  end
  local waiting = call('ZCARD', QUEUE) -- without a plus, these are left over from a hash that is gone
  if left > 0 and queued == (waiting > 0) and (writes or (h[3] or '') == '') then
    local n = (h[2] or 0) + 1
    local ticket = string.format('%d', n)
    call('ZADD', QUEUE, writes and ticket or string.format('%d', n - READERS_FIRST), ARGV[1])
    call('HSET', LOCK, 'owner', holder .. ' +', 'ticket', ticket, ARGV[3], ARGV[2] .. ' ' .. now .. ' waits ' .. ARGV[4],
      writes and 'pending' or 'ticket', writes and string.format('%d', (tonumber(h[3] or '') or 0) + 1) or ticket)
    if not (from and from >= time[1] and TTL == SHORT) then -- else the waiter that is watched has set the times to live within this second
      local need, new = TTL, not queued
      --#include keep.lua
    end
    if not record then
      --#include sweep.lua
      sweep(LOCK, true)
    end
    local ahead = writes and waiting or written and 0 or 1
    return {'', 0, '', '', math.ceil(left / 1000), ahead, written and 'write' or 'read', whose, fence or ''}
  end
end
