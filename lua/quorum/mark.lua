-- Reads or changes the server's mark, by which clients tell whether it has forgotten whom it voted for. It has no time to live: a
-- server whose mark had run out would be taken for one that has lost its data. There is one for each prefix. The hash says:
--
--   id          which server it is, since it last lost its data or left a generation
--   run         the run of the server process, as of the last look: see run.lua
--   saved       the server's LASTSAVE at that time
--   generation  of the servers that vote together; none until it may vote
--   rest        "1" while it votes for nobody, until a client admits it: it may have voted for somebody, and forgotten that
--   longest     the longest lease in use, ms, as of since
--   before      the longest lease in use before that, ms
--   since       since when longest counts, ms
--   top         no smaller than any token that it has voted with
--   old         no smaller than any token whose name it has forgotten, as of turned, s: see vote.lua
--   asked       how often clients that reach no majority have asked what the others' marks say
--   told        what a client that reaches one has found since: "<asked> <generation> <longest> <top>"
--
-- KEYS   1 mark
-- ARGV   1 "see"    2 lease  3 what its id is to end with if it has none
--          "start"  2 lease  3 id  4 generation: it has none, and does not rest
--          "rest"   2 lease  3 id  4 the generation that it was seen with  5 what its new id is to end with
--          "admit"  2 lease  3 id  4 generation  5 a token no smaller than any that it has forgotten: it has rested
--          "ask"    2 lease  3 id: the caller reaches no majority that votes
--          "tell"   2 lease  3 id  4 asked  5 generation  6 longest  7 top: so says a majority, read after it was asked so often
--        and one more along with the script's text: see run.lua. lease is one that is in use, in ms, or 0
-- Reply  {id, generation, 1 if it rests or 0, longest lease in ms, top, µs of the server's clock, a string, run, asked, told}

--#include clock.lua
--#include ../quorum/run.lua
local f = call('HMGET', KEYS[1], 'id', 'generation', 'rest', 'longest', 'before', 'since', 'top', 'asked', 'told')
local id, generation, rest, top = f[1], f[2] or '', f[3] or '', f[7] or ''
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local longest, before, since = tonumber(f[4] or 0), tonumber(f[5] or 0), tonumber(f[6] or ms)
local asked, told = tonumber(f[8] or 0), f[9] or ''
local what, lease = ARGV[1], tonumber(ARGV[2])

local function put(...)
  call('HSET', KEYS[1], ...)
end

if what == 'see' then
  if not id then
    id = now .. ':' .. ARGV[3]
    put('id', id, 'run', run)
  end
elseif id == ARGV[3] then
  -- Else the request is about data that the server has lost.
  if what == 'start' and rest == '' and generation == '' then
    generation = ARGV[4]
    put('generation', generation)
  elseif what == 'rest' and rest == '' and generation == ARGV[4] then
    if generation ~= '' then
      id = now .. ':' .. ARGV[5] -- so that what was sent before is refused
    end
    generation, rest = '', '1'
    put('id', id, 'generation', generation, 'rest', rest)
  elseif what == 'admit' and rest ~= '' then
    generation, rest = ARGV[4], ''
    if ARGV[5] > top then
      top = ARGV[5]
    end
    put('generation', generation, 'rest', rest, 'top', top, 'old', top, 'turned', time[1])
  elseif what == 'ask' then
    asked = asked + 1
    put('asked', asked)
  elseif what == 'tell' and tonumber(ARGV[4]) > tonumber(string.match(told, '^%d+') or 0) then
    told = table.concat(ARGV, ' ', 4, 7)
    put('told', told)
  end
end
-- A lease is in use for IN_USE, and twice its own length, after a client has last said so, or longer. If the server is out of memory, what
-- it remembers stays.
if id and ms - since > IN_USE + 2 * math.max(longest, before) and
    type(redis.pcall('HSET', KEYS[1], 'longest', 0, 'before', longest, 'since', ms)) == 'number' then
  before = longest
  longest, since = 0, ms
end
if id and lease > longest then
  longest = lease
  put('longest', longest, 'since', since)
end
return {id or '', generation, rest ~= '' and 1 or 0, math.max(longest, before), top, now, run, asked, told}
