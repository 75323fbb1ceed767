-- Takes the lock for writing; or queues for it; or, sent again by a waiter, keeps its place and asks for news.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms: at least the lease and three minutes,
--        "240000" if that suffices  6 what wake channels begin with  7 "wait" or "try"
-- Reply  the fencing token, a string; -1 if the claim has ended; or what shared/reply.lua says

--#include clock.lua
local seen = call('HMGET', KEYS[1], 'owner', 'fence', 'protocol', ARGV[3])
local owner, fence, protocol, record = seen[1] or '', seen[2], seen[3] or PROTOCOL, seen[4]

if protocol == PROTOCOL and (not record or record < ARGV[2]) then
  if owner == '' and (not fence or fence < now) then
    -- Nobody holds the lock, and nobody waits for it.
    if fence then
      call('HSET', KEYS[1], 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    else
      call('HSET', KEYS[1], 'protocol', PROTOCOL, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
    end
    -- The first to get the lock in each second sees to the time to live for all.
    if ARGV[5] ~= SHORT or not fence or fence < time[1] then
      call('PEXPIRE', KEYS[1], ARGV[5])
    end
    if fence and not record then
      --#include sweep.lua
      sweep(false)
    end
    return now
  end
  if ARGV[7] == 'wait' then
    --#include line.lua
  end
end
local CHANNELS = ARGV[6]
--#include state.lua
--#include leases.lua
--#include serve.lua
--#include reply.lua

if ended() then
  return -1
end
if holder == claim and alive(since, lease) then
  return let_in_before(token)
end
local waits = heartbeat()
expire()
serve()
if granted[claim] ~= 'let in' then
  if waits or holder ~= '' or waiting > 0 then
    return blocked(waits)
  end
  enter(claim, next_token(), ARGV[4], now)
end
return entered()
