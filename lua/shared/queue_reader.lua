-- Queues a reader in the common case: a live writer, no delegation, holds the lock; or live readers hold it, and a live writer is first in line.
-- shared/blocked.lua handles all other cases.
local holder, plus = string.match(owner, '^(%S+) ?(%+?)$')
local kind = holder and string.sub(holder, 1, 1)
local written, shared = kind == 'w', holder == 'shared'
if holder ~= ARGV[1] and (written and holder ~= ARGV[8] and string.sub(holder, -2) ~= ':0' or (shared or kind == 'r') and plus == '+') then
  local last = shared and call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES') or {}
  local first = not written and call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1)[1] or ''
  local its_slot, its_number = string.match(first, '^w:([^:]+:%d+):(%d+)')
  local h = call('HMGET', LOCK, 'lease', 'ticket', 'owed', its_slot or ARGV[3])
  local lease, since = string.match(h[1] or '0', '^(%d+) ?(%d*)$')
  local at = now - time[2] % 1000 -- a lease counts in whole ms
  local left
  if shared then
    left = (last[2] or 0) * 1000 - at
  else
    left = (since == '' and fence or since) + lease * 1000 - at
    if left > lease * 1000 + BACK then
      left = 0 -- the clock was set back
    end
  end
  if not written and left > 0 then
    local of, from, for_ms = string.match(its_slot and h[4] or '', '^(%d+) (%d+) waits (%d+)$')
    left = of and of == its_number and (h[3] or '') == '' and from + for_ms * 1000 - at or 0
  elseif plus == '' and left > 0 and call('ZCARD', QUEUE) > 0 then
    left = 0 -- the queue is left over from a hash that is gone
  end
  if left > 0 then
    local n = (h[2] or 0) + 1
    local ticket = string.format('%d', n)
    call('ZADD', QUEUE, string.format('%d', n - READERS_FIRST), ARGV[1])
    local waits = ARGV[2] .. ' ' .. now .. ' waits ' .. ARGV[4]
    if plus == '+' then
      call('HSET', LOCK, 'ticket', ticket, ARGV[3], waits)
    else
      call('HSET', LOCK, 'owner', owner .. ' +', 'ticket', ticket, ARGV[3], waits)
    end
    local ttl = tonumber(ARGV[6] or SHORT)
    if call('PTTL', QUEUE) < ttl - SPARE then -- or it is new
      ttl = math.max(ttl, call('PTTL', LOCK))
      for _, key in ipairs({LOCK, LEASES, QUEUE}) do
        call('PEXPIRE', key, ttl)
      end
    end
    if not record then
      --#include sweep.lua
      sweep(true)
    end
    return {'', 0, '', '', math.ceil(left / 1000), written and 0 or 1, written and 'write' or 'read', last[1] or holder,
      fence or ''}
  end
end
