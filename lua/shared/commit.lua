-- Changes of the lock, and how they are written.

--#include state.lua

local set, new_leases, new_queue = {}, false, false

-- Sets a field when the script commits.
local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end

if set_back then
  put('lease', lease .. ' ' .. now)
end

-- Notes how a claim ended, so that requests of it that arrive late are refused.
local function tombstone(its_slot, its_number, how)
  put(its_slot, its_number .. ' ' .. time[1] .. ' ' .. how)
end

-- Whether a claim of that number has ended. last is the value of its slot.
local function over(its_number, last)
  local of = string.sub(last, 1, DIGITS)
  local what = of == its_number and string.match(last, '%l+')
  return of > its_number or what == 'ended' or what == 'void'
end

-- Writes a tombstone for a claim that was lost, unless its slot was used again. last is the value of its slot.
local function lose(id, last)
  local its_slot, its_number = parts(id)
  if not over(its_number, last or '') then
    tombstone(its_slot, its_number, 'void')
  end
end

-- Whether several read: the sorted set of leases counts.
local function several()
  return holder == SHARED
end

-- When the last lease ends, or ended, ms; and the claim that has that lease. 0 if nobody holds the lock.
local function ends()
  if several() then
    local last = call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES')
    return tonumber(last[2]) or 0, last[1] or ''
  end
  return holder ~= '' and since / 1000 + lease or 0, holder
end

-- Makes a server that is out of memory accept the writes that follow: it refuses only a script's first write, if that needs memory.
-- Holds must be renewed and released there, too.
local function insist()
  call('HDEL', LOCK, '')
end

-- Sets a field to a number, or empties it if the number is 0.
local function put_number(field, n, before)
  if n ~= (tonumber(before or '') or 0) then
    put(field, n > 0 and n or '')
  end
end

-- Writes what has changed, and keeps the times to live of the keys long enough. Returns that of the hash, ms.
local function commit(at_least)
  local owner = waiting > 0 and (holder == '' and '2' or holder) .. ' +' or holder
  if owner ~= (f[1] or '') then
    put('owner', owner)
  end
  put_number('pending', pending, f[5])
  if owed ~= (f[7] or '') then
    put('owed', owed)
  end
  if set[1] then
    local done = redis.pcall('HSET', LOCK, unpack(set))
    if type(done) == 'table' then
      insist()
      call('HSET', LOCK, unpack(set))
    end
  end
  local need, new = at_least or REST, new_leases or new_queue
  --#include keep.lua
  return ttl
end

-- 1 if an earlier step left readers whose turn it is, so that a repeated reply says so, too.
local function unfinished()
  return owed ~= '' and 1 or 0
end
