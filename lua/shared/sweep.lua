-- Removes tombstones of long ago, if they are among a few fields taken at random. A script that adds a slot calls it, so that the slots
-- of processes that are gone do not pile up in a hash that lives on. It also makes the server keep a hash of many slots as a table.
-- keep says whether slots in the state held must stay: those of readers, or that of a write delegation.
local function sweep(lock, keep)
  if call('HLEN', lock) > MANY then
    call('HSETNX', lock, 'table', LONG)
  end
  local sample = call('HRANDFIELD', lock, -SAMPLE, 'WITHVALUES')
  for i = 1, #sample, 2 do
    local s, what, lease = string.match(sample[i + 1], '^%d+ (%d%d%d%d%d%d%d%d%d%d)%d* (%l+) ?(%d*)')
    local rest = what == 'waits' and lease / 1000 or what == 'held' and keep and math.huge or 0
    if s and s + rest + MEMORY < tonumber(time[1]) then
      call('HDEL', lock, sample[i])
    end
  end
end
