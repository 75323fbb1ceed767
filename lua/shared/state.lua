-- The state of the lock: it is read here, changed by the files that include this one, and written by commit.lua. docs/protocol.md lists the
-- fields of the hash, and says when the sorted sets count. A set that does not count is left over from a hash that is gone.

--#include clock.lua

local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local claim, number, slot = ARGV[1], string.sub(ARGV[2], 1, DIGITS), ARGV[3]
local writes = string.sub(claim, 1, 2) == WRITE

local f = call('HMGET', LOCK, 'owner', 'lease', 'fence', 'count', 'pending', 'ticket', 'owed', slot)
local protocol = string.match(f[1] or '', '^%d*')
if protocol ~= '2' and (f[1] or '') ~= '' then -- the first one's owner has no number
  return redis.error_reply('INCOMPATIBLE the lock was written by another version of rwlock, protocol '
    .. (protocol == '' and '1' or protocol))
end
local holder, plus = string.match(f[1] or '', '^(%S*) ?(%+?)$')
if holder == '2' then
  holder = '' -- nobody holds the lock, and someone waits
end
local lease, since = string.match(f[2] or '0', '^(%d+) ?(%d*)$')
local fence, count, record = f[3], f[4] or '', f[8] or ''
local pending, owed = tonumber(f[5] or '') or 0, f[7] or ''
local token = fence -- of the claim that holds the lock alone
local waiting = 0
if since == '' then
  since = fence or now
end
if plus == '+' then
  waiting = call('ZCARD', QUEUE)
end
if waiting == 0 then
  pending, owed = 0, ''
end

local set_back = holder ~= '' and holder ~= SHARED and since - now > BACK
if set_back then
  -- The clock was set back: the lease counts from now, or a holder that has died would block the lock for the step, too.
  since = now
end

--#enclose
local function is_write(id)
  return string.sub(id, 1, 2) == WRITE
end

-- The slot of a claim, and its number.
local function parts(id)
  return string.match(id, SLOT)
end

local function alive(from, for_ms)
  return from / 1000 + for_ms > ms
end
