-- Lets in more of those whose turn it is, where the step before said that there were more.
--
-- KEYS   1 lock  2 leases  3 queue
-- ARGV   1 a claim of the caller  2 its number  3 its slot  4 what wake channels begin with
-- Reply  {1, more, wake, mute}

--#include clock.lua
local CHANNELS = ARGV[4]
--#include state.lua
--#include leases.lua
--#include serve.lua

expire()
serve()
commit()
return {1, more, wake()}
