-- Readers. One reader alone has its token in the hash, and the hash expires with its lease. As soon as there are two,
-- each has its deadline in leases, until all have left.

-- The deadline of a live read hold, or nil. Either key may have been evicted: then its holds are lost.
local function reader_deadline(id)
  if call('HEXISTS', READERS, id) == 1 then
    local deadline = call('ZSCORE', LEASES, id)
    if deadline then
      deadline = tonumber(deadline)
      return deadline > ms and deadline or nil
    end
    if call('HLEN', READERS) == 1 then
      return ms + call('PTTL', READERS)
    end
  end
end

-- The last deadline among the live read holds and the hold it belongs to, or nil: then no trace of a reader is left.
local function readers_end()
  local left = call('PTTL', READERS)
  local last = call('ZREVRANGE', LEASES, 0, 0, 'WITHSCORES')
  if left ~= -2 then
    if not last[1] then
      return ms + left, call('HKEYS', READERS)[1]
    end
    if tonumber(last[2]) > ms then
      return tonumber(last[2]), last[1]
    end
  end
  if left ~= -2 or last[1] then
    call('UNLINK', READERS, LEASES)
  end
end

-- Makes holds read holds, each with its own deadline: ids is {id, …}, deadlines is {deadline, …}.
local function add_readers(ids, deadlines, token)
  local tokens, leases, last = {}, {}, 0
  if call('ZCARD', LEASES) == 0 then
    local others = call('HLEN', READERS)
    if others == 1 then
      last = ms + call('PTTL', READERS)
      leases = {last, call('HKEYS', READERS)[1]}
    elseif others > 1 then
      call('UNLINK', READERS)  -- leases was evicted: nobody can tell who of these lives
    end
    if others ~= 1 and #ids == 1 then
      call('HSET', READERS, ids[1], token)
      call('PEXPIRE', READERS, deadlines[1] - ms)
      return
    end
  end
  for i, id in ipairs(ids) do
    tokens[#tokens + 1] = id
    tokens[#tokens + 1] = token
    leases[#leases + 1] = deadlines[i]
    leases[#leases + 1] = id
    last = math.max(last, deadlines[i])
  end
  call('HSET', READERS, unpack(tokens))
  call('ZADD', LEASES, unpack(leases))
  keep(READERS, LEASES, last - ms)
end

-- Makes a live read hold live for at least lease more.
local function extend_reader(id, deadline, lease)
  if deadline - ms >= tonumber(lease) then
    return
  end
  if call('EXISTS', LEASES) == 0 then
    call('PEXPIRE', READERS, lease)
    return
  end
  -- Unlike ZADD, PEXPIRE works on a server that is out of memory, and what follows it in the script does too.
  local ttl = math.max(call('PTTL', LEASES), lease + 1000)
  call('PEXPIRE', READERS, ttl)
  call('PEXPIRE', LEASES, ttl)
  call('ZADD', LEASES, string.format('%.0f', ms + lease), id)
end

local function remove_reader(id)
  call('HDEL', READERS, id)
  call('ZREM', LEASES, id)
end
