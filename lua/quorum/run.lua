-- run is the run of the server process, or '' if the server does not tell. A process that was restarted with data may have forgotten its
-- last votes, unless it is durable: it never confirms what it could forget. If it is not, it rests, under another id. Only the client can
-- ask whether it is: it sends the script's text then, with one more argument, "durable" or "volatile".
--
-- LASTSAVE is the second in which the process has started, or has last saved its data. The mark has it in saved, from two seconds later on:
-- so the process is the one that was looked at then, for as long as they are the same.
local run = string.match(tostring(redis.pcall('INFO', 'server')), 'run_id:(%x+)') or ''
local saved = tostring(redis.pcall('LASTSAVE'))
local known = call('HMGET', KEYS[#KEYS], 'id', 'run')
if known[1] and run ~= '' and run ~= known[2] then
  if (known[2] or '') ~= '' and ARGV[#ARGV] ~= 'durable' then
    if ARGV[#ARGV] ~= 'volatile' then
      return redis.error_reply('NOSCRIPT the server was restarted: say whether it is durable')
    end
    call('HSET', KEYS[#KEYS], 'id', now .. ':' .. run, 'generation', '', 'rest', '1')
  end
  call('HSET', KEYS[#KEYS], 'run', run)
end
if known[1] and time[1] - (tonumber(saved) or time[1]) > 1 then
  redis.pcall('HSET', KEYS[#KEYS], 'saved', saved) -- or else the next one looks again
end
