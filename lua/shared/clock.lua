-- The server's clock, read once, before anything that depends on it: before Redis 7.2 it moves on within a script. now is the
-- time in µs, a string of 16 digits. Times, tokens and numbers of claims stay strings, each sort of one length, so that they
-- compare as such: to format a Lua number costs as much as a command does.

local call = redis.call
local time = call('TIME')
local now = #time[2] == 6 and time[1] .. time[2] or time[1] .. string.sub('00000', #time[2]) .. time[2]
