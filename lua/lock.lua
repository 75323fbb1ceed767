-- Acquires the lock for writing, or queues the claim. A waiter sends it again as its heartbeat: that keeps the waiter's place, and
-- returns a grant whose message was lost.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms
--        optional: 5 prefix of the wake channels, default "rwlock:wake:"  6 time to live of the keys, ms: at least the lease and three
--        minutes; default "240000"  7 "wait" (default) or "try"
-- Reply  the fencing token, a string; -1 if the claim has ended, or its grant has; otherwise a list, see shared/reply.lua

--#include clock.lua
local seen = call('HMGET', LOCK, 'owner', 'fence', ARGV[3])
local owner, fence, record = seen[1] or '', seen[2], seen[3]

if not record or record < ARGV[2] then
  if owner == '' and (not fence or fence < now) then
    -- Nobody holds the lock, and nobody waits for it.
    call('HSET', LOCK, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    -- The first acquisition in each second sets the time to live, for all others in that second.
    if not fence or fence < time[1] or (ARGV[6] or SHORT) ~= SHORT then
      call('PEXPIRE', LOCK, ARGV[6] or SHORT)
    end
    if fence and not record then
      --#include sweep.lua
      sweep(false)
    end
    return now
  end
  if ARGV[7] ~= 'try' then
    --#include queue_writer.lua
  end
end
local CHANNELS, TTL, TRY = ARGV[5] or WAKE, ARGV[6] or SHORT, ARGV[7] == 'try'
--#include state.lua
--#include leases.lua
--#include holders.lua
--#include hold.lua
--#include serve.lua
--#include reply.lua

if ended() then
  return -1
end
if holder == claim then
  return alive(since, lease) and let_in_before(token) or refuse()
end
local waits = heartbeat()
expire()
serve()
if granted[claim] ~= 'let in' then
  if waits or holder ~= '' or waiting > 0 then
    --#include blocked.lua
  end
  enter(claim, next_token(), ARGV[4], now)
end
return entered()
