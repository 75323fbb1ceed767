-- Withdrawal.

-- Ends what is no hold: a waiter, or a request that has come and gone, or has yet to come.
local function give_up(number, writer)
  local done = call('GET', DONE)
  if done == number then
    return 2
  end
  if call('ZSCORE', QUEUE, hold) then
    dequeue({hold})
  end
  if not done or math.abs(tonumber(done)) < tonumber(number) then
    call('SET', DONE, '-' .. number, 'PX', DONE_TTL)
  end
  if not writer then
    serve()
  end
  return {0, more, wake()}
end
