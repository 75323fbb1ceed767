-- The renewal of a hold.

--#include leases.lua

-- Renews the caller's hold, and notes how many holds its owner has. Returns its token, or nil if there was none. It always writes: see renew.lua.
local function renew(for_ms, n)
  local its_token = held()
  if not its_token then
    return nil
  end
  local alone = n == '1' and '' or n
  if holder ~= claim then
    put(slot, number .. ' ' .. its_token .. ' held ' .. n)
  elseif count ~= alone then
    put('count', alone)
  elseif not set_back then
    put('lease', f[2])
  end
  if holder ~= claim and fence - now > BACK then
    -- The clock was set back, and a lease of before would last for longer. A renewal is for as long as its holder relies on.
    live_for(for_ms)
  else
    extend(for_ms)
  end
  return its_token
end
