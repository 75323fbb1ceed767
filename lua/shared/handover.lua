-- A handover from writer to writer, the common case: the next in line is a live writer. shared/serve.lua handles all other cases.
local id = call('ZRANGE', QUEUE, 0, 0)[1]
local instance, its_slot, its_number = string.match(id or '', '^w:([^:]+)(:%d+):(%d+)')
if instance then
  local last = call('HMGET', LOCK, instance .. its_slot, 'fence', 'pending', 'readers')
  local of, since, lease = string.match(last[1] or '', '^(%d+) (%d+) waits (%d+)$')
  if of == its_number and since + lease * 1000 > tonumber(now) and last[2] and last[2] < now and (last[4] or '') == '' then
    local others = last[3] ~= '1'
    call('ZREM', QUEUE, id)
    call('HSET', LOCK, 'owner', others and id .. ' +' or id, 'lease', lease .. ' ' .. since, 'fence', now,
      'pending', others and last[3] - 1 or '', ARGV[3], ARGV[2])
    local message = now .. ' 0 ' .. its_number
    if instance .. ':' == string.sub(ARGV[3], 1, #instance + 1) then
      return {1, 0, message, ''}
    end
    local told = redis.pcall('PUBLISH', ARGV[4] .. instance, message)
    return type(told) == 'table' and {1, 0, '', told.err} or 1
  end
end
