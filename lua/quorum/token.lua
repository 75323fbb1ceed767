-- The token of a vote, which follows from no clock. The lock's hash says in vote: "<instance>:<number of the last writer> <largest
-- token> <that writer's token>". It must not look like a slot's value, which shared/sweep.lua clears away. A writer's token is larger than
-- all before, a reader's no smaller than any writer's before: the one that the caller wants, if it can be had. What is not known any more
-- of a name is not larger than old: see mark.lua.

-- Returns the token of the claim that was let in. mark is what the server's mark says, write whether it is a writer's.
local function cast(mark, wanted, write)
  local top, old, turned = mark[3] or '', mark[4] or '', mark[5] or ''
  local at = time[1]
  if turned == '' or at - turned > TURN or at < turned then
    old, turned = top, at
    call('HSET', KEYS[4], 'old', old, 'turned', turned)
  end
  local by, largest, written = string.match(call('HGET', KEYS[1], 'vote') or '', '^(%S+) (%d+) (%d*)$')
  if not largest then
    by, largest, written = '-', old, old
  end
  local mine = string.match(ARGV[1], '^%l:([^:]+)') .. ':' .. ARGV[2]
  local token = wanted
  if write and by ~= mine then
    token = wanted > largest and wanted or string.format('%.0f', largest + 1)
  elseif token < written then
    token = written
  end
  local now_by, now_written = by, written
  if write then
    now_by, now_written = mine, token
  end
  local now_largest = token > largest and token or largest
  if now_by ~= by or now_written ~= written or now_largest ~= largest then
    call('HSET', KEYS[1], 'vote', now_by .. ' ' .. now_largest .. ' ' .. now_written)
  end
  if now_largest > top then
    call('HSET', KEYS[4], 'top', string.format('%.0f', now_largest + AHEAD))
  end
  return token
end

-- Whether the server may vote: its mark is the one that the caller knows.
local function may_vote(mark)
  return mark[1] == ARGV[11] and mark[2] == ARGV[9] and ARGV[9] ~= ''
end

-- Adds the token to the reply to a claim that was let in.
local function voted(reply, mark, write)
  if type(reply) == 'string' then
    return reply .. ' ' .. cast(mark, ARGV[10], write)
  end
  if type(reply) == 'table' and not reply.err and reply[1] ~= '' then
    reply[9] = cast(mark, ARGV[10], write)
  end
  return reply
end
