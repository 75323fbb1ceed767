//go:build race

package rwlock_test

// underRace says that the race detector is on: then a sync.Pool forgets some of what is put into it.
const underRace = true
