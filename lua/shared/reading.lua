-- Renews the lease of a claim on a lock that several read and nobody waits for: of a hold, or of a delegation. record is the field of its
-- slot. Returns 1, or 2 if the general path has to renew it: it also removes readers whose leases have ended, and knows what to do if the
-- lease lasts longer, as after the clock was set back, the number of holds is another, or the server is out of memory.
local function renew_reading(record, claim, number, for_ms, need, count, lock, leases)
  if not string.match(record or '', '^' .. number .. ' %d+ held ' .. count .. '$') then
    return 2
  end
  local ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local deadline = call('ZSCORE', leases, claim)
  if not deadline or deadline - ms >= tonumber(for_ms) or call('ZCOUNT', leases, '-inf', ms) > 0
    or type(redis.pcall('ZADD', leases, ms + for_ms, claim)) ~= 'number' then
    return 2
  end
  if call('PTTL', lock) < need - SPARE then
    call('PEXPIRE', lock, need)
    call('PEXPIRE', leases, need)
  end
  return 1
end
