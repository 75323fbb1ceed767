-- run is the run of the server process, or '' if the server does not tell. A process that was restarted with data may have forgotten its
-- last votes, unless it is durable: it never confirms what it could forget. If it is not, it rests, under another id. A script cannot find
-- out whether it is. So the reply NOSCRIPT has the client ask, and send the script's text with one more argument: "durable" or "volatile".
--
-- INFO takes long. LASTSAVE does not, and is another after a restart: it is the second in which the process has started, or has last saved
-- its data. So the mark keeps it, and a vote looks at the run only if it has changed. It is kept two seconds later, since a process that
-- starts in the same second has the same LASTSAVE.
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
