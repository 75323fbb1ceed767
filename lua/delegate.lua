-- Delegates the lock to the caller's RWLock, or renews a delegation. docs/protocol.md says which tokens it gives.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim, with handle 0  2 its number  3 its slot  4 lease, ms  5 prefix of the wake channels  6 time to live of the keys, ms
--        7 "take"; or "keep": renew it, and never begin one; or "used": renew it, and say that the lock is held under it
-- Reply  {code, more, wake, failure, token, top, recalled}, see docs/protocol.md

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'delegated', 'fence', ARGV[3])
local owner, fence, record = seen[1] or '', seen[3], seen[4]
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[7] == 'keep' then
  --#include reading.lua
  if owner == SHARED and renew_reading(record, ARGV[1], ARGV[2], ARGV[4], ARGV[6], '1', LOCK, LEASES) == 1 then
    return {1, 0, '', '', string.match(record, ' (%d+)'), '', 0}
  end
elseif string.sub(ARGV[1], 1, 2) == READ and (owner == '' or owner == SHARED) and (not record or record < ARGV[2])
  and (not fence or fence <= now) then
  -- Nobody waits, and nobody writes. The lock is shared from the first delegation on.
  local readers, list = call('ZCARD', LEASES), seen[2] or ''
  local _, others = string.gsub(list, ' ', ' ')
  if (readers == 0 or owner == SHARED) and others < DELEGATES then -- readers of a free lock are left over from a hash that is gone
    local need, new = ARGV[6], readers == 0
    if new then
      call('ZADD', LEASES, 0, LONG, ms + ARGV[4], ARGV[1]) -- as in holders.lua
      call('ZREM', LEASES, LONG)
    else
      call('ZADD', LEASES, ms + ARGV[4], ARGV[1])
    end
    call('HSET', LOCK, 'owner', SHARED, 'fence', now, 'delegated', list .. ARGV[1] .. ' ',
      ARGV[3], ARGV[2] .. ' ' .. now .. ' held 1')
    --#include keep.lua
    if not record then
      --#include sweep.lua
      sweep(LOCK, true)
    end
    return {1, 0, '', '', now, '', 0}
  end
end
local CHANNELS = ARGV[5]
--#include serve.lua
--#include sweep.lua

-- The read delegations that stand, each followed by a space.
local function delegated()
  local ids, n = '', 0
  for id in string.gmatch(call('HGET', LOCK, 'delegated') or '', '%S+') do
    if id == holder or several() and tonumber(call('ZSCORE', LEASES, id) or 0) > ms then
      ids, n = ids .. id .. ' ', n + 1
    end
  end
  return ids, n
end

-- Begins the delegation, unless something is in its way. Returns its token.
local function take()
  if waiting > 0 or holder ~= '' and (is_write(holder) or writes) or writes and fence and fence > now then
    return
  end
  if writes then
    enter(claim, next_token(), ARGV[4], now)
    put(slot, number .. ' ' .. token .. ' held 1') -- so that force knows the first of its tokens
    return token
  end
  local ids, n = delegated()
  if n >= DELEGATES then
    return
  end
  put('delegated', ids .. claim .. ' ')
  if holder == '' then
    enter(claim, read_token(), ARGV[4], now)
  else
    share({claim}, {ms + ARGV[4]}, read_token())
  end
  return fence
end

if over(number, record) then
  return {0, unfinished(), '', '', '', '', 0}
end
local its_token = held()
if its_token then -- a request to begin it has run before; a client that has that reply ignores this one
  if writes and fence < now then
    put('lease', lease .. ' ' .. since) -- which may have been counted from fence
    put('fence', now)
    fence, its_token = now, now
  end
  if holder ~= claim and fence - now > BACK then
    live_for(ARGV[4]) -- as in renew.lua
  else
    extend(ARGV[4])
  end
  if ARGV[7] == 'used' then
    local ids, used = delegated(), claim .. ' '
    for id in string.gmatch(call('HGET', LOCK, 'used') or '', '%S+') do
      if id ~= claim and string.find(ids, id .. ' ', 1, true) then
        used = used .. id .. ' '
      end
    end
    put('used', used)
    ask_first() -- tries that wait for it are refused
    for _, id in ipairs(call('ZRANGE', QUEUE, 0, NEARBY)) do
      ask(id)
    end
  end
elseif ARGV[7] ~= 'take' then
  return {0, unfinished(), '', '', '', '', 0}
else
  local was = holder == claim or string.match(record, '^' .. number .. ' %d+ held')
  expire()
  serve()
  its_token = not was and take()
end
if not its_token then
  leave_leases()
  tombstone(slot, number, 'void')
  commit(ARGV[6])
  local message, failure = wake()
  return {0, more, message, failure, '', '', 0}
end
commit(ARGV[6])
if record == '' then
  sweep(LOCK, several())
end
local message, failure = wake()
return {1, more, message, failure, its_token, writes and fence or '', (writes and waiting or pending) > 0 and 1 or 0}
