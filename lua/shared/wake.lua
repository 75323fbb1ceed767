-- How waiters are notified.

--#include publish.lua

local more = 0              -- 1 if this step could not grant the lock to all waiters whose turn it is
local granted = {}          -- by claim: whether this step granted it the lock, or has it ask again
-- By instance: the numbers of the claims that were granted the lock, that are to ask again, that are delegations which are recalled, and
-- that were dropped by force.
local grants, asks, recalls, drops = {}, {}, {}, {}
local answered              -- the claim that the reply itself informs

local function note(list, id)
  local instance, _, its_number = string.match(id, '^%l:([^:]+):(%d+):(%d+)')
  list[instance] = (list[instance] or '') .. ' ' .. its_number
end

-- Has a waiter ask again: what blocks it ends earlier than it knows.
local function ask(id)
  if id and id ~= answered and not granted[id] then
    granted[id] = 'asked'
    note(asks, id)
  end
end

local function next_writer()
  return call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1)[1]
end

-- Has the first in line ask again.
local function ask_first()
  if waiting > 0 then
    ask(call('ZRANGE', QUEUE, 0, 0)[1])
    if pending > 0 and waiting > pending then
      ask(next_writer())
    end
  end
end

-- Adds numbers to the messages to their instances, behind a mark.
local function add(messages, mark, list)
  for instance, numbers in pairs(list) do
    messages[instance] = (messages[instance] or '') .. mark .. string.sub(numbers, 2)
  end
end

-- Notifies those that it concerns, with one message to each instance: "<token> <more> <number> …" for those that were granted the lock,
-- then ",<number> …" for those that are to ask again, ";<number> …" for delegations that are recalled, and "!<number> …" for what was
-- dropped by force. Returns the message for the caller's own instance, which goes into the reply, and why other instances could not be
-- notified.
local function wake()
  local messages, failure = {}, ''
  for instance, numbers in pairs(grants) do
    messages[instance] = fence .. ' ' .. more .. numbers
  end
  add(messages, ',', asks)
  add(messages, ';', recalls)
  add(messages, '!', drops)
  local mine = string.match(claim, '^%l:([^:]+)')
  for instance, message in pairs(messages) do
    if instance ~= mine then
      local done = publish(CHANNELS, instance, message)
      if type(done) == 'table' then
        failure = done.err
      end
    end
  end
  return messages[mine] or '', failure
end
