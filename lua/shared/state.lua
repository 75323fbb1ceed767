-- The lock as it stands: what every script needs once the uncontended case is behind it. A script reads it here, decides, and
-- writes what has changed in commit.
--
-- A claim is named <mode>:<instance>:<slot>:<number>:<process>:<handle>; mode is w or r, number has twelve digits.
-- The hash says:
--
--   owner     the write claim, or the read claim of a reader that is alone; "shared" when several read; "" when nobody holds
--             the lock. " +" follows when there is more to see: somebody waits, or the writer also reads. A later protocol
--             begins it with its number, at all times, so that no script of this one takes the lock for free or for its own
--   lease     of that claim, ms, counted from the time in fence; or "<ms> <µs>", from that time
--   count     its reentrancy count, and the number of the request that set it; none until it is re-entered
--   fence     the last token
--   readers   how many read holds the writer has
--   pending   how many writers wait
--   ticket    the last that was given out
--   owed      the ticket up to which waiting readers go before the next writer, while a step has left some of them
--   <slot>    what the last claim of that slot has come to:
--               "<number> <s> ended"             released
--               "<number> <s> void"              ended without a hold, or lost
--               "<number> <token> held <count>"  one of several readers; behind it the request that set the count
--               "<number> <µs> waits <lease>"    it waits, or waited before it was let in
--   table     nothing, at length: it has the server keep the hash as a table, once there are many slots
--
-- An ordered set counts only as far as the hash says that it does: leases while several read, or the writer reads; queue while
-- owner ends with a plus.

local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local claim, number, slot = ARGV[1], ARGV[2], ARGV[3]

local f = call('HMGET', LOCK, 'owner', 'lease', 'fence', 'count', 'readers', 'pending', 'ticket', 'owed', slot)
local protocol = string.match(f[1] or '', '^%d+')
if protocol then
  return redis.error_reply('INCOMPATIBLE the lock was written by another version of rwlock, protocol ' .. protocol)
end
local holder, more_to_see = string.match(f[1] or '', '^(%S*) ?(%+?)$')
local lease, since = string.match(f[2] or '0', '^(%d+) ?(%d*)$')
local fence, count, record = f[3], f[4] or '', f[9] or ''
local readers, pending, owed = tonumber(f[5] or '') or 0, tonumber(f[6] or '') or 0, f[8] or ''
local token = fence -- of the claim that holds the lock alone
local waiting = 0
if since == '' then
  since = fence or now
end
if more_to_see == '+' then
  waiting = call('ZCARD', QUEUE)
end
if waiting == 0 then
  pending, owed = 0, ''
end

local set, new_leases, new_queue = {}, false, false

-- Notes what a field is to say.
local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end

-- Notes how a claim ended: its requests that come late are refused.
local function tombstone(its_slot, its_number, how)
  put(its_slot, its_number .. ' ' .. time[1] .. ' ' .. how)
end

-- Notes that another's claim was lost, unless its slot has gone on. last is what the slot says, what is what it was to say.
local function lose(its_slot, its_number, last, what)
  local its_last, now_says = string.match(last or '', '^(%d+) %d+ (%l+)')
  if its_slot ~= slot and its_last == its_number and now_says == what then
    tombstone(its_slot, its_number, 'void')
  end
end

-- Lets a server that is out of memory take what follows: it refuses to grow only until a script has written. What is held is to
-- be renewed and released there.
local function insist()
  call('HDEL', LOCK, '')
end

-- Notes a number in a field, or nothing if that is 0.
local function put_number(field, n, before)
  if n ~= (tonumber(before or '') or 0) then
    put(field, n > 0 and n or '')
  end
end

-- Writes what has changed, and sees to the time to live of the keys.
local function commit(ttl)
  local owner = (waiting > 0 or readers > 0) and holder .. ' +' or holder
  if owner ~= (f[1] or '') then
    put('owner', owner)
  end
  put_number('readers', readers, f[5])
  put_number('pending', pending, f[6])
  if owed ~= (f[8] or '') then
    put('owed', owed)
  end
  if set[1] then
    local done = redis.pcall('HSET', LOCK, unpack(set))
    if type(done) == 'table' and done.err then
      insist()
      call('HSET', LOCK, unpack(set))
    end
  end
  local left, need = call('PTTL', LOCK), ttl or REST
  local short = left < need - SPARE
  if short then
    left = need
    call('PEXPIRE', LOCK, need)
  end
  if new_leases or short and (holder == 'shared' or readers > 0) then
    call('PEXPIRE', LEASES, left)
  end
  if new_queue or short and waiting > 0 then
    call('PEXPIRE', QUEUE, left)
  end
end

local function is_write(id)
  return string.sub(id, 1, 1) == 'w'
end

-- The slot of a claim, and its number.
local function parts(id)
  return string.match(id, '^%l:([^:]+:%d+):(%d+)')
end

local function alive(from, for_ms)
  return from / 1000 + for_ms > ms
end

-- Whether the caller's claim has ended, so that this request is late.
local function ended()
  local last = string.sub(record, 1, 12)
  local what = last == number and string.match(record, '%l+')
  return last > number or what == 'ended' or what == 'void'
end

-- 1 if the step before left readers whose turn it is, so that a reply which is given again says so.
local function unfinished()
  return owed ~= '' and not is_write(holder) and 1 or 0
end

local function set_count(to)
  if count ~= to then
    count = to
    put('count', to)
  end
end

-- The token of a writer: larger than any before.
local function next_token()
  fence = fence and fence >= now and string.format('%.0f', fence + 1) or now
  put('fence', fence)
  return fence
end

-- The token of a reader: the time, so that no earlier writer's is larger even if the server lost the last writes to the fence.
-- Every later writer's is.
local function read_token()
  fence = fence and fence > now and fence or now
  put('fence', fence)
  return fence
end

-- Gives the lock to a claim alone.
local function enter(id, its_token, for_ms, from)
  holder, token, lease, since = id, its_token, for_ms, from
  put('lease', from == its_token and for_ms or for_ms .. ' ' .. from)
  set_count('')
end
