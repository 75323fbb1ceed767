-- Ends one claim and grants another in its place, in one step. Waiters keep their places.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 the new claim  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms  6 how many holds the owner has
--        7 prefix of the wake channels  8 the claim that ends  optional: 9 the secret of the ticket, if that claim is one's. The instance
--        of such a claim is the start of the secret's SHA-1
-- Reply  as lock.lua: -1 if there is neither claim, and no token if the new claim has ended. The token is that of the claim before, or a
--        new one for a ticket, and to write after reading

local CHANNELS = ARGV[7]
--#include end.lua
--#include renew.lua

local token_before = renew(ARGV[4], ARGV[6])
if token_before then
  commit(ARGV[5])
  return {token_before, unfinished(), '', '', 0, 0, 'held', '', fence or ''}
end
if over(number, record) then
  return {'', unfinished(), '', '', 0, 0, '', '', fence or ''}
end
local into, its_slot, its_number, new = claim, slot, number, record == ''
claim = ARGV[8]
slot, number = parts(claim)
record = call('HGET', LOCK, slot) or ''
token_before = held()
if not token_before or ARGV[9] and string.sub(redis.sha1hex(ARGV[9]), 1, 32) ~= string.match(claim, INSTANCE) then
  return -1
end

local until_ms = ends()
local others = several() and call('ZCOUNT', LEASES, '(' .. ms, '+inf') - 1 or 0
local rises = is_write(into) and not is_write(claim)
if rises and (others > 0 or first_writer() or more == 1) then
  local last = others > 0 and call('ZREVRANGE', LEASES, 0, 1, 'WITHSCORES') or {'', ms}
  local at = last[1] == claim and 3 or 1
  tombstone(its_slot, its_number, 'void')
  commit()
  claim = into
  local message, failure = wake()
  return {'', more, message, failure, math.ceil(last[at + 1] - ms), pending, others > 0 and 'read' or '', last[at], fence or ''}
end

if several() then
  if rises then
    leave_leases()
    if several() then
      drop_readers() -- their leases have ended
    end
  end
elseif is_write(claim) and not is_write(into) then
  owe()
end
if ARGV[9] or rises then
  token_before = is_write(into) and next_token() or read_token()
end
if several() then
  share({into}, {ms + ARGV[4]}, token_before)
  call('ZREM', LEASES, claim) -- at last: a node that moves the slot refuses a set that is empty in between
else
  enter(into, token_before, ARGV[4], now)
  set_count(ARGV[6] == '1' and '' or ARGV[6])
end
if is_write(into) and ends() < until_ms then
  ask_first()
end
claim = into
-- The tombstone of the claim before tells unlock whether it has ended that claim itself.
local done = release(until_ms, 'void', ARGV[5])
if new then -- as that of each ticket is
  --#include sweep.lua
  sweep(LOCK, several())
end
return {token_before, done[2], done[3], done[4], 0, 0, '', '', fence}
