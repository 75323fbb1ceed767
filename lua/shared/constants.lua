-- Names that stand for what is written here, in every script: see lua.go.

LOCK = KEYS[1]
LEASES = KEYS[2]
QUEUE = KEYS[3]

STEP = 250         -- the most that one script lets in, or clears away
NEARBY = 10        -- the most dead waiters that a waiter clears away in front of itself
DEAD = 100         -- the most dead readers that a renewal clears away
SAMPLE = 4         -- how many fields a new slot has the server look at, for slots at rest
SHORT = '240000'   -- the time to live that suffices for most leases, ms
REST = '180000'    -- for how long the keys stay after the last lease, ms
SPARE = 20000      -- a time to live that is short by less than this is left as it is, ms
MEMORY = 240       -- for how long a slot is kept after its last claim ended, s
READERS_FIRST = 1000000000000 -- by so much less is the place of a reader than its ticket
MANY = 7           -- a hash with more fields is kept as a table
-- What has held so long a value, the server keeps as a table: in a list, each look-up costs more the more there is.
LONG = '.................................................................'
