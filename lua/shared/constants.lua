local PROTOCOL = '1'     -- the version that wrote the lock
local STEP = 250         -- the most that one script lets in, or clears away
local NEARBY = 10        -- the most dead waiters that a waiter clears away in front of itself
local DEAD = 100         -- the most dead readers that a renewal clears away
local SAMPLE = 4         -- how many fields a new slot has the server look at, for slots at rest
local SHORT = '240000'   -- the time to live that suffices for most leases, ms
local REST = '180000'    -- for how long the keys stay after the last lease, ms
local SPARE = 20000      -- a time to live that is short by less than this is left as it is, ms
local MEMORY = 240       -- for how long a slot is kept after its last claim ended, s
local READERS_FIRST = 1000000000000 -- by so much less is the place of a reader than its ticket
local MANY = 8           -- a hash with more fields is kept as a table
-- What has held so long a value, the server keeps as a table: in a list, each look-up costs more the more there is.
local LONG = '.................................................................'
