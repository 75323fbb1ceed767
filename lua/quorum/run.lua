-- run is the run of the server process, or '' if the server does not tell. A process that was restarted with data may have forgotten its
-- last votes, unless it is durable: it never confirms what it could forget. If it is not, it rests, under another id. A process has no
-- scripts when it starts, so that it gets the text of each script once, with one more argument: "durable", or "".
local run = string.match(tostring(redis.pcall('INFO', 'server')), 'run_id:(%x+)') or ''
local known = call('HMGET', KEYS[#KEYS], 'id', 'run')
if known[1] and run ~= '' and run ~= known[2] then
  if (known[2] or '') ~= '' and ARGV[#ARGV] ~= 'durable' then
    call('HSET', KEYS[#KEYS], 'id', now .. ':' .. run, 'generation', '', 'rest', '1')
  end
  call('HSET', KEYS[#KEYS], 'run', run)
end
