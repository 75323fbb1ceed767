-- Names for what every script needs once the uncontended case is behind it.
--
-- Needs  clock.lua
--
-- A hold is named <process uuid>:<handle>:<number>.

local call = redis.call
local WRITER, QUEUE, DONE, FENCE, READERS, LEASES, WAITERS, COUNT, SOLE = unpack(KEYS)
local ms = time[1] * 1000 + math.floor(time[2] / 1000)

local STEP = 250                -- the most that one script lets in, or clears away
local FENCE_TTL = '172800000'   -- two days, ms
-- Two minutes and a half, ms: longer than a request lives in the buffers of a connection that its client has closed.
local DONE_TTL = '150000'

-- Makes two keys that belong together last for at least ttl ms: either may have been evicted, and is new. Returns for how
-- long they do.
local function keep(one, other, ttl)
  local left, right = call('PTTL', one), call('PTTL', other)
  if left < ttl or right < ttl then
    ttl = math.max(ttl, left, right) + 1000  -- a second more saves the next callers the same commands
    call('PEXPIRE', one, ttl)
    call('PEXPIRE', other, ttl)
    return ttl
  end
  return math.min(left, right)
end

-- Makes the write hold live for at least lease more.
local function extend_writer(lease)
  if call('PTTL', WRITER) < tonumber(lease) then
    call('PEXPIRE', WRITER, lease)
    call('PEXPIRE', COUNT, lease)
  end
end
