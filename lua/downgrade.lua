-- Turns a write hold into a read hold, in one step: ends the claim that writes, and grants a claim of the same owner that reads, with the
-- same token. The readers that wait are owed the phase. Run again, it renews the claim that reads.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 the claim that reads  2 its number  3 its slot  4 lease, ms  5 time to live of the keys, ms  6 how many holds the owner has
--        7 prefix of the wake channels  8 the claim that writes
-- Reply  {code, more, wake, failure}, see docs/protocol.md; code: 1 done  2 done by an earlier run  0 there is neither claim

local CHANNELS = ARGV[7]
--#include end.lua
--#include renew.lua

if renew(ARGV[4], ARGV[6]) then
  commit(ARGV[5])
  return {2, unfinished(), '', ''}
elseif over(number, record) or holder ~= ARGV[8] or not alive(since, lease) then
  return {0, unfinished(), '', ''}
end
local until_ms = ends()
owe()
enter(claim, token, ARGV[4], now)
set_count(ARGV[6] == '1' and '' or ARGV[6])
slot, number = parts(ARGV[8])
record = call('HGET', LOCK, slot) or ''
return release(until_ms, 'void', ARGV[5]) -- so that unlock tells whether it has ended the claim itself
