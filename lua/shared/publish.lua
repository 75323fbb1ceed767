-- Sends a message to an instance. What the names of the channels begin with is followed by '{}' in a cluster. There an instance that was
-- told of a name before may listen in the name's own slot, where a message costs the other nodes nothing. If it does not, or the server
-- is older than Redis 7, the message goes to all nodes.
local function publish(channels, instance, message)
  if string.sub(channels, -2) == '{}' then
    channels = string.sub(channels, 1, -3)
    local heard = redis.pcall('SPUBLISH', channels .. instance .. string.match(LOCK, '{.*}'), message)
    if type(heard) == 'number' and heard > 0 then
      return heard
    end
  end
  return redis.pcall('PUBLISH', channels .. instance, message)
end
