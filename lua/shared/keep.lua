-- Keeps the times to live of the keys at need, ms, or a little less. A key that is new gets the time to live of the hash.
local ttl = call('PTTL', LOCK)
local short = ttl < need - SPARE
if short or new then
  ttl = short and need or ttl
  for _, key in ipairs({LOCK, LEASES, QUEUE}) do
    redis.pcall('PEXPIRE', key, ttl) -- fails on a key that this step has emptied, while the slot moves
  end
end
