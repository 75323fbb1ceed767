-- The state of the lock, for every script whose short path does not apply: it is read here, changed by the files that scripts include
-- next, and written by commit.
--
-- A claim is named <mode>:<instance>:<slot>:<number>:<process>:<handle>; mode is w or r, number has twelve digits.
-- The fields of the hash:
--
--   owner     the write claim, or the read claim of a reader that is alone; "shared" when several read; "" when nobody holds
--             the lock. " +" follows when someone waits, or the writer also reads. A later version of the layout must always
--             begin it with its number, so that no script of this version takes the lock for free or for its own
--   lease     of that claim, ms, counted from the time in fence; or "<ms> <µs>", from that time
--   count     its reentrancy count, and the number of the request that set it; none until it is re-entered
--   fence     the last token
--   readers   how many read holds the writer has
--   pending   how many writers wait
--   ticket    the last ticket that was given out
--   delegated the claims of read delegations, each followed by a space, and perhaps of some that have ended
--   owed      the ticket up to which waiting readers go before the next writer, while a step has left some of them
--   <slot>    the last claim of that slot, and its state:
--               "<number> <s> ended"             a tombstone: it was released
--               "<number> <s> void"              a tombstone: it ended without a hold, or was lost
--               "<number> <token> held <count>"  one of several readers; the request that set the count follows
--               "<number> <µs> waits <lease>"    it waits, or waited before it was granted the lock
--   table     a long value without meaning: it makes the server keep the hash as a table, once there are many slots
--
-- The hash says whether a sorted set counts: leases while several read, or the writer reads; queue while owner ends with a plus. A set
-- that does not count is left over from a hash that is gone.

local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local claim, number, slot = ARGV[1], string.sub(ARGV[2], 1, 12), ARGV[3]

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

-- Sets a field when the script commits.
local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end

if holder ~= '' and holder ~= 'shared' and since - now > BACK then
  -- The clock was set back: the lease counts from now, or a holder that has died would block the lock for the step, too.
  since = now
  put('lease', lease .. ' ' .. now)
end

-- Notes how a claim ended, so that requests of it that arrive late are refused.
local function tombstone(its_slot, its_number, how)
  put(its_slot, its_number .. ' ' .. time[1] .. ' ' .. how)
end

-- Writes a tombstone for another's claim that was lost, unless its slot was used again. last is the value of the slot, what the state
-- that it is expected to be in.
local function lose(its_slot, its_number, last, what)
  local its_last, now_says = string.match(last or '', '^(%d+) %d+ (%l+)')
  if (its_slot ~= slot or its_number ~= number) and its_last == its_number and now_says == what then
    tombstone(its_slot, its_number, 'void')
  end
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
    if type(done) == 'table' then
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
  return left
end

local function is_write(id)
  return string.sub(id, 1, 1) == 'w'
end

-- Whether a claim is a delegation: it belongs to no owner, but to an RWLock.
local function is_delegation(id)
  return string.sub(id, -2) == ':0'
end

-- The slot of a claim, and its number.
local function parts(id)
  return string.match(id, '^%l:([^:]+:%d+):(%d+)')
end

local function alive(from, for_ms)
  return from / 1000 + for_ms > ms
end

-- Whether the caller's claim has ended, so that this request arrived late.
local function ended()
  local last = string.sub(record, 1, 12)
  local what = last == number and string.match(record, '%l+')
  return last > number or what == 'ended' or what == 'void'
end

-- 1 if an earlier step left readers whose turn it is, so that a repeated reply says so, too.
local function unfinished()
  return owed ~= '' and 1 or 0
end
