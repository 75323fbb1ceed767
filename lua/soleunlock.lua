-- Releases what solelock.lua took, if nobody has had to do with the lock since.
--
-- KEYS   1 sole
-- ARGV   1 what sole says then  2 what it is to say
-- Reply  1 released  2 released by an earlier run  0 something has happened since: release as others do

local sole = redis.call('GET', KEYS[1])
if sole == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  return 1
end
return sole == ARGV[2] and 2 or 0
