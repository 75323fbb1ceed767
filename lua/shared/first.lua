-- Nobody holds the lock, and nobody waits for it.
call('HSET', LOCK, 'owner', ARGV[1], 'lease', ARGV[4], 'fence', now)
-- The first acquisition in each second sets the time to live, for all others in that second.
if not fence or fence < time[1] or (ARGV[6] or SHORT) ~= SHORT then
  call('PEXPIRE', LOCK, ARGV[6] or SHORT)
end
if fence and not record then
  --#include sweep.lua
  sweep(false)
end
return now
