-- How waiters are notified.

--#include publish.lua

local more = 0      -- 1 if this step could not grant the lock to all waiters whose turn it is
local granted = {}  -- by claim: whether this step granted it the lock, or has it ask again
local answered      -- the claim that the reply itself informs
local notes = {}    -- by instance and mark: the numbers of the claims that are notified

-- Has a claim be notified. The marks are " " for those that were granted the lock, "," for those that are to ask again, ";" for delegations
-- that are recalled, "?" for those that a try recalls, and "!" for those that were dropped by force.
local function note(mark, id)
  local instance, _, its_number = string.match(id, '^2%l:([^:]+):(%d+):(%d+)')
  local its = notes[instance] or {}
  its[mark] = (its[mark] and its[mark] .. ' ' or mark) .. its_number
  notes[instance] = its
end

-- Has a waiter ask again: what blocks it ends earlier than it knows.
local function ask(id)
  if id and id ~= answered and not granted[id] then
    granted[id] = 'asked'
    note(',', id)
  end
end

local function next_writer()
  return call('ZRANGEBYSCORE', QUEUE, '(0', '+inf', 'LIMIT', 0, 1)[1]
end

-- Has the first in line ask again: the first reader, and the first writer. See I11 for a first reader that has died.
local function ask_first()
  if waiting > 0 then
    ask(call('ZRANGE', QUEUE, 0, 0)[1])
    if pending > 0 and waiting > pending then
      ask(next_writer())
    end
  end
end

-- Sends one message to each instance that has a claim to notify: "<token> <more> <number> …" for those that were granted the lock, then
-- the other marks and numbers. Returns the message for the caller's own instance, which goes into the reply, and why other instances could
-- not be notified.
local function wake()
  local mine, failure = '', ''
  for instance, its in pairs(notes) do
    local grants = its[' '] and fence .. ' ' .. more .. its[' '] or ''
    local message = grants .. (its[','] or '') .. (its[';'] or '') .. (its['?'] or '') .. (its['!'] or '')
    if instance == string.match(claim, INSTANCE) then
      mine = message
    else
      local done = publish(CHANNELS, instance, message)
      if type(done) == 'table' then
        failure = done.err
      end
    end
  end
  return mine, failure
end
