-- One of several servers' vote for a claim: as lock.lua, if the server has not forgotten whom it voted for.
--
-- What makes the grant of a lock a vote: the server's mark is the one that the caller knows, and the claim gets a token, which follows
-- from no clock. The lock's hash says in vote: "<instance>:<number of the last writer> <largest token> <that writer's token>". It must not
-- look like a slot's value, which shared/sweep.lua clears away. A writer's token is larger than all before, a reader's no smaller than any
-- writer's before: the one that the caller wants, if it can be had. What is not known any more of a name is not larger than old: see mark.lua.
--
-- KEYS   1 lock  2 leases  3 queue  4 the server's mark: see mark.lua
-- ARGV   1 to 7 as lock.lua, all of them  8 the generation of the mark  9 the token that is wanted, 16 digits
--        10 the id of the mark  11 only along with the script's text: see run.lua
-- Reply  as lock.lua; if the claim was let in, with the vote's token behind a space, or as the ninth element; -2 if the mark is another

--#include clock.lua
if call('HGET', KEYS[4], 'saved') ~= tostring(redis.pcall('LASTSAVE')) then
  --#include ../quorum/run.lua
end
local mark = call('HMGET', KEYS[4], 'id', 'generation', 'top', 'old', 'turned')
if mark[1] ~= ARGV[10] or mark[2] ~= ARGV[8] or ARGV[8] == '' then
  return -2
end

-- Adds the token to the reply to a claim that was let in.
local function voted(reply)
  local fast = type(reply) == 'string'
  if not fast and (type(reply) ~= 'table' or reply.err or reply[1] == '') then
    return reply
  end
  local top, old, turned = mark[3] or '', mark[4] or '', mark[5] or ''
  if turned == '' or time[1] - turned > TURN or time[1] < turned then
    old = top
    call('HSET', KEYS[4], 'old', old, 'turned', time[1])
  end
  local before = call('HGET', LOCK, 'vote') or ''
  local by, largest, written = string.match(before, '^(%S+) (%d+) (%d*)$')
  if not largest then
    by, largest, written = '-', old, old
  end
  local token, writer = ARGV[9], string.match(ARGV[1], '^2w:([^:]+)')
  writer = writer and writer .. ':' .. ARGV[2]
  if writer and writer ~= by then
    token = token > largest and token or string.format('%.0f', largest + 1)
  elseif token < written then
    token = written
  end
  if writer then
    by, written = writer, token
  end
  largest = token > largest and token or largest
  local vote = by .. ' ' .. largest .. ' ' .. written
  if vote ~= before then
    call('HSET', LOCK, 'vote', vote)
  end
  if largest > top then
    call('HSET', KEYS[4], 'top', string.format('%.0f', largest + AHEAD))
  end
  if fast then
    return reply .. ' ' .. token
  end
  reply[9] = token
  return reply
end

local function acquire()
  --#include ../lock.lua
end
return voted(acquire())
