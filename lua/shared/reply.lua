-- The replies of lock.lua and rlock.lua.

-- What to answer a caller that has to wait, or would have to.
local function blocked()
  local writer, rank = call('GET', WRITER), call('ZRANK', QUEUE, hold)
  local left, who = 0, writer
  if writer then
    left = call('PTTL', WRITER)
  else
    local last
    last, who = readers_end()
    left = last and last - ms or 0
    local first, deadline = first_writer()
    if first and first ~= hold then
      left = math.min(last and left or deadline - ms, deadline - ms)
    end
  end
  left, rank = ask_again(left, rank)
  return {0, more, wake(), left, rank or call('ZCARD', QUEUE), writer and 'write' or 'read', who or ''}
end

-- The answer to a caller that this step let in. Others that it let in beside are told by a message, the caller's process
-- included: a token has no room for them.
local function granted_reply()
  local token = granted[hold]
  hold = ''  -- no process: so that wake tells all by messages
  wake()
  return token
end
