-- Has a hash that lives on forget slots that have been at rest for long, if they are among a few taken at random. A script that
-- adds a slot calls it, so that the slots of processes that are gone do not pile up. It also sees to it that a hash of many
-- slots is a table. keep says that slots of holds may count.
local function sweep(keep)
  if call('HLEN', LOCK) > MANY then
    call('HSETNX', LOCK, 'table', LONG)
  end
  local sample = call('HRANDFIELD', LOCK, -SAMPLE, 'WITHVALUES')
  for i = 1, #sample, 2 do
    local s, what, lease = string.match(sample[i + 1], '^%d+ (%d%d%d%d%d%d%d%d%d%d)%d* (%l+) ?(%d*)')
    local rest = what == 'waits' and lease / 1000 or what == 'held' and keep and math.huge or 0
    if s and s + rest + MEMORY < tonumber(time[1]) then
      call('HDEL', LOCK, sample[i])
    end
  end
end
