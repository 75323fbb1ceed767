-- A handover from writer to writer, the common case: the next in line is a live writer. shared/serve.lua handles all other cases.
local id = call('ZRANGE', QUEUE, 0, 0)[1]
local its_slot, instance, its_number = string.match(id or '', '^w:(([^:]+):%d+):(%d+)')
if instance then
  local last = call('HMGET', LOCK, its_slot, 'fence', 'pending', 'readers')
  local its_record = last[1] or ''
  local since, lease = string.sub(its_record, 14, 29), string.match(its_record, '^ waits (%d+)$', 30)
  local alive = lease and string.sub(its_record, 1, 12) == its_number and since + lease * 1000 - now > 0
  if alive and last[2] and last[2] < now and (last[4] or '') == '' then
    local others = last[3] ~= '1'
    call('ZREM', QUEUE, id)
    call('HSET', LOCK, 'owner', others and id .. ' +' or id, 'lease', lease .. ' ' .. since, 'fence', now,
      'pending', others and last[3] - 1 or '', ARGV[3], ARGV[2])
    local message = now .. ' 0 ' .. its_number
    if instance .. ':' == string.sub(ARGV[3], 1, #instance + 1) then
      return {1, 0, message, ''}
    end
    --#include publish.lua
    local published = publish(ARGV[4] or WAKE, instance, message)
    return type(published) == 'table' and {1, 0, '', published.err} or 1
  end
end
