-- Drops every hold, notifies the holders, up to one step's worth, and grants the lock to the next in line.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 a claim of the caller's, for this request alone  2 its number  3 its slot  optional: 4 as in unlock.lua
--        5 a token: drop the holds only while the lock is held with that last token, or under a write delegation that has given it
-- Reply  {code, more, wake, failure}, see docs/protocol.md; code: 1 dropped  2 dropped by an earlier run  0 not held with that token

local CHANNELS = ARGV[4] or WAKE
--#include end.lua

if over(number, record) then
  return {2, unfinished(), '', ''}
end
-- Whether the holds have that token. Those of a write delegation are all from that of its grant, which its slot has, up to fence, which
-- each renewal moves: nobody else gets tokens while it stands.
local function is_theirs(a_token)
  if a_token == fence or not is_write(holder) then
    return a_token == fence
  end
  local its_slot, its_number = parts(holder)
  local first = string.match(call('HGET', LOCK, its_slot) or '', '^' .. its_number .. ' (%d+) held')
  return first and #a_token == #first and first <= a_token and a_token < fence
end

if ARGV[5] and (ends() <= ms or not is_theirs(ARGV[5])) then
  return {0, unfinished(), '', ''}
end
-- This fails on a key of another type, before anything has changed.
call('ZCARD', QUEUE)
call('ZCARD', LEASES)
-- Notifies a holder of another instance: the caller's own learns of it from the reply.
local function drop(id)
  if string.match(id, INSTANCE) ~= string.match(claim, INSTANCE) then
    note('!', id)
  end
end

local until_ms = ends()
if holder ~= '' and holder ~= SHARED then
  drop(holder)
end
for _, id in ipairs(several() and call('ZRANGE', LEASES, 0, STEP - 1) or {}) do
  drop(id)
end
evict()
return release(until_ms, 'ended')
