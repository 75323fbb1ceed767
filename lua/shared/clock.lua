-- The server's clock, read once, first: before Redis 7.2 it advances within a script. now is the time in µs, a string of 16 digits.
-- Times, tokens and numbers of claims stay strings, each kind of one length, and are compared as strings: formatting a Lua number
-- costs as much as a command.

local call = redis.call
local time = call('TIME')
local now = #time[2] == 6 and time[1] .. time[2] or time[1] .. string.sub('00000', #time[2]) .. time[2]
