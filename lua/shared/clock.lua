-- The server's clock, read once, before anything else. now is what a token is made of, µs: the digits of a number would
-- cost more to write than the script's commands do.

local time = redis.call('TIME')
local now = time[1] .. string.sub('00000', #time[2]) .. time[2]
