-- A handover from writer to writer, the common case: the next in line is a live writer. serve.lua handles all other cases.
local id = call('ZRANGE', QUEUE, 0, 0)[1]
local its_slot, instance, its_number = string.match(id or '', '^2w:(([^:]+):%d+):(%d+)')
local h = call('HMGET', LOCK, 'fence', 'pending', its_slot or ARGV[3])
local last = its_slot and h[3] or ''
local from, for_ms = string.match(last, '^' .. (its_number or '') .. ' (%d+) waits (%d+)$')
local alive = for_ms and from + for_ms * 1000 - now > 0
if alive and h[1] and h[1] < now then
  local others = h[2] ~= '1'
  call('ZREM', QUEUE, id)
  call('HSET', LOCK, 'owner', others and id .. ' +' or id, 'lease', for_ms .. ' ' .. from, 'fence', now,
    'pending', others and string.format('%d', h[2] - 1) or '', ARGV[3], ARGV[2])
  local message = now .. ' 0 ' .. its_number
  if instance == string.match(ARGV[3], '^[^:]+') then
    return {1, 0, message, ''}
  end
  --#include publish.lua
  local published = publish(ARGV[4] or WAKE, instance, message)
  return type(published) == 'table' and {1, 0, '', published.err} or 1
end
