-- Reads or changes the server's mark, by which clients tell whether it has forgotten whom it voted for. It has no time to live: a
-- server whose mark had run out would be taken for one that has lost its data. There is one for each prefix. The hash says:
--
--   id          which server it is, since it last lost its data: the time when the mark was made, and who made it
--   generation  of the servers that vote together; none until it may vote
--   rest        until when it is not to be let in by others, ms: it has lost its data, and may have voted for somebody
--   longest     the longest lease that it votes for, ms
--   top         no smaller than any token that it has voted with
--   old         no smaller than any token whose name it has forgotten, as of turned, s: see token.lua
--
-- KEYS   1 mark
-- ARGV   1 "see"    2 what its id ends with if it has none
--          "start"  2 id  3 generation  4 longest lease, ms: it has no generation, and does not rest
--          "rest"   2 id  3 the generation that it was seen with  4 for how long, ms
--          "admit"  2 id  3 generation  4 longest lease, ms  5 a token no smaller than any that it has forgotten: it has rested
--          "raise"  2 id  3 generation  4 longest lease, ms
-- Reply  {id, generation, ms that it has yet to rest or -1, longest lease in ms, top, µs of the server's clock, a string}

--#include clock.lua
local f = call('HMGET', KEYS[1], 'id', 'generation', 'rest', 'longest', 'top')
local id, generation, rest, longest, top = f[1], f[2] or '', f[3] or '', f[4] or '0', f[5] or ''
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local what = ARGV[1]

local function put(...)
  call('HSET', KEYS[1], ...)
end

local function raise(to)
  if tonumber(to) > tonumber(longest) then
    longest = to
    put('longest', longest)
  end
end

if what == 'see' then
  if not id then
    id = now .. ':' .. ARGV[2]
    put('id', id)
  end
elseif id == ARGV[2] then
  -- Else the request is about data that the server has lost.
  if what == 'start' and rest == '' and generation == '' then
    generation = ARGV[3]
    put('generation', generation)
    raise(ARGV[4])
  elseif what == 'rest' and rest == '' and generation == ARGV[3] then
    generation, rest = '', string.format('%.0f', ms + ARGV[4])
    put('generation', generation, 'rest', rest)
  elseif what == 'admit' and rest ~= '' and ms >= tonumber(rest) then
    generation, rest = ARGV[3], ''
    if ARGV[5] > top then
      top = ARGV[5]
    end
    put('generation', generation, 'rest', rest, 'top', top, 'old', top, 'turned', time[1])
    raise(ARGV[4])
  elseif what == 'raise' and generation == ARGV[3] then
    raise(ARGV[4])
  end
end
local left = -1
if rest ~= '' then
  left = math.max(rest - ms, 0)
end
return {id or '', generation, left, tonumber(longest), top, now}
