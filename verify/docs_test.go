package verify_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The documented commands, and what this test runs in their place: the same with less of it.
var documented = map[string]string{
	`RWLOCK_REQUIRE_REDIS=1 go test ./...`:                               `RWLOCK_REQUIRE_REDIS=1 go test -run '^$' ./...`,
	`go test -run Differential -rapid.checks 10000 .`:                    `go test -rapid.checks 10000 -list Differential . | grep ^Test`,
	`go test . -run Pinned -addr localhost:6379 -db 9`:                   `go test . -addr localhost:6379 -db 9 -list Pinned | grep ^Test`,
	`go test ./explore -run 'TestExplore$' -large -timeout 4h`:           `go test ./explore -large -list 'TestExplore$' | grep ^Test`,
	`go run ./explore -replay explore/testdata/late-copy-of-force.trace`: `go run ./explore -replay explore/testdata/late-copy-of-force.trace`,
	`go run ./explore`: `go run ./explore -states 2000`,
	`go run ./explore owners 11 asks 2 reenter forces 1`:                                               `go run ./explore -states 2000 owners 11 asks 2 reenter forces 1`,
	`go test ./sim -seeds 100000 -timeout 12h`:                                                         `go test ./sim -run Promises -seeds 2 -quorums 1`,
	`go test ./sim -seed 42 -seeds 1 -v`:                                                               `go test ./sim -run Promises -seed 42 -seeds 1 -quorums 1 -v`,
	`go test ./sim -climate storm -seeds 10000 -timeout 2h`:                                            `go test ./sim -run Promises -climate storm -seeds 2 -quorums 1`,
	`go test ./sim -climate 'delegated storm' -seeds 2000 -timeout 2h`:                                 `go test ./sim -run Promises -climate 'delegated storm' -seeds 2 -quorums 1`,
	`go test ./faults -run TestHistoriesOfDelegatedLocksFitOneLock -for 10m -v -timeout 2h`:            `go test ./faults -for 10m -list TestHistoriesOfDelegatedLocksFitOneLock | grep ^Test`,
	`go test ./faults -run Histories -for 1m -procs 6 -seed 7`:                                         `go test ./faults -for 1m -procs 6 -seed 7 -list Histories | grep ^Test`,
	`go test ./faults -times 20 -timeout 6h`:                                                           `go test ./faults -run '^$' -times 20 -timeout 6h`,
	`go test ./faults -run 'TestNoFaultGetsPastTheFence/SIGKILL'`:                                      `go test ./faults -list 'TestNoFaultGetsPastTheFence' | grep TestNoFault`,
	`go test ./fuzz -run '^$' -fuzz FuzzReplies -fuzztime 10m`:                                         `go test ./fuzz -run '^$' -fuzz FuzzReplies -fuzztime 100x`,
	`go test ./mistakes -all -v -timeout 2h`:                                                           `go test ./mistakes -all -list Mistakes | grep ^Test`,
	`go test ./faults -run TestNothingIsBrokenByAFailover -every -leases 3s,10s,30s -v -timeout 2h`:    `go test ./faults -every -leases 3s,10s,30s -list TestNothingIsBrokenByAFailover | grep ^Test`,
	`go test ./faults -run TestFaultsOfQuorumServers -servers 3,5 -times 3 -parallel 1 -v -timeout 2h`: `go test ./faults -servers 3,5 -times 3 -list TestFaultsOfQuorumServers | grep ^Test`,
	`go test ./times -run TestHoldsOutliveAStall -large -v`:                                            `go test ./times -large -list TestHoldsOutliveAStall | grep ^Test`,
	`go test ./times -run TestSoak -soak 30m -timeout 2h -v`:                                           `go test ./times -soak 30m -list TestSoak | grep ^Test`,
}

var verifyBlock = regexp.MustCompile("(?m)^```sh\ncd verify\n((?:.+\n)+?)```$")

// Each command that the documents have for this module works, and each that is listed here is documented.
func TestDocumentedCommandsRun(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	}))
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, block := range verifyBlock.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(block[1]) {
				command, _, _ := strings.Cut(line, " #")
				command = strings.TrimSpace(command)
				require.Contains(t, documented, command, "%s: nothing shows that this works", file)
				found[command] = true
			}
		}
	}
	for command, small := range documented {
		require.True(t, found[command], "no document has %s", command)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		out, err := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", small).CombinedOutput()
		cancel()
		require.NoError(t, err, "%s\n%s", small, out)
	}
}
