-- The caller's hold, and its lease.

-- The token of the caller's hold, or nil if there is none or its lease has ended.
local function held()
  if holder == claim then
    return alive(since, lease) and token or nil
  end
  local deadline = several() and string.sub(record, 1, 12) == number and call('ZSCORE', LEASES, claim)
  if deadline and tonumber(deadline) > ms then
    return string.match(record, '^%d+ (%d+) held')
  end
end

-- Sets the lease of the caller's hold, counted from now.
local function live_for(for_ms)
  if holder == claim then
    put('lease', for_ms .. ' ' .. now)
  else
    insist()
    call('ZADD', LEASES, ms + for_ms, claim)
  end
end

-- Sets the lease of the caller's hold, counted from now, unless the hold already lasts longer.
local function extend(for_ms)
  local deadline = holder == claim and since / 1000 + lease or tonumber(call('ZSCORE', LEASES, claim))
  if deadline < ms + for_ms then
    live_for(for_ms)
  end
end
