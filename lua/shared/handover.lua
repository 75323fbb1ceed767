-- A handover from writer to writer, the common case: the next in line is a live writer. serve.lua handles all other cases.
local id = call('ZRANGE', QUEUE, 0, 0)[1]
local from, for_ms = lives(id)
if from and is_write(id) then
  call('ZREM', QUEUE, id)
  call('HSET', LOCK, 'owner', waiting > 1 and id .. ' +' or id, 'lease', for_ms .. ' ' .. from, 'fence', now,
    'pending', waiting > 1 and pending - 1 or '', slot, ARGV[2])
  local instance, its_number = string.match(id, '^w:([^:]+):%d+:(%d+)')
  local message = now .. ' 0 ' .. its_number
  if instance == string.match(slot, '^[^:]+') then
    return {1, 0, message, ''}
  end
  --#include publish.lua
  local published = publish(CHANNELS, instance, message)
  return type(published) == 'table' and {1, 0, '', published.err} or 1
end
