//go:build !race

package rwlock_test

const underRace = false
