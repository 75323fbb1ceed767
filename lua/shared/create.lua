-- The hash has no fence: it is new, or a version wrote it that this one cannot read.
if call('HSETNX', KEYS[1], 'protocol', PROTOCOL) == 0 then
  local other = call('HGET', KEYS[1], 'protocol')
  if other ~= PROTOCOL then
    return redis.error_reply('INCOMPATIBLE the lock was written by another version of rwlock, protocol ' .. other)
  end
end
