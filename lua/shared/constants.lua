-- Constants. Their values replace their names in every script: see lua.go.

LOCK = KEYS[1]
LEASES = KEYS[2]
QUEUE = KEYS[3]

READ = '2r'        -- what the claims that read begin with: the number of the protocol, and the mode
WRITE = '2w'
SHARED = '2shared' -- the owner while several read
INSTANCE = '^2%l:([^:]+)'        -- of a claim
SLOT = '^2%l:([^:]+:%d+):(%d+)' -- of a claim, and its number

WAKE = 'rwlock:wake:' -- what the names of the channels begin with, with the default prefix
DIGITS = 15        -- of a claim's number
STEP = 200         -- the most waiters that one script grants the lock to, or removes
NEARBY = 10        -- the most dead waiters that a waiter removes ahead of itself, and the most readers that one that tries waits behind
DELEGATES = 64     -- the most read delegations of a lock
DEAD = 100         -- the most dead readers that a renewal removes
SAMPLE = 4         -- how many fields sweep looks at
SHORT = '240000'   -- the time to live that suffices for most leases, ms
REST = '180000'    -- for how long the keys stay after the last lease, ms
BACK = 1000000     -- a lease that began later than this from now shows that the server's clock was set back, µs
SPARE = 20000      -- a time to live that is short by less than this is left as it is, ms
AHEAD = 10000      -- by how much a server's mark runs ahead of its tokens, so that not every vote writes to it: see quorum/vote.lua
SOON = 100         -- a waiter may ask so much later than the last lease in front of it ends, ms
TURN = 60          -- for so long at least the token of a name outlives its last use, s: see quorum/vote.lua
IN_USE = 600000    -- for at least so long a lease counts as one in use, ms: see quorum/mark.lua
MEMORY = 240       -- for how long a slot is kept after its last claim ended, s
READERS_FIRST = 1000000000000 -- a reader's place in the queue is its ticket less this
MANY = 7           -- a hash with more fields is kept as a table
-- The server keeps a hash or sorted set that has held so long a value as a table; in a list, each lookup costs more the longer it is.
LONG = '.................................................................'
