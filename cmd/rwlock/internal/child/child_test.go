//go:build linux

package child

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that has ended does not run, though its parent has not asked for its status.
func TestZombieDoesNotRun(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	group := cmd.Process.Pid
	require.Equal(t, []Process{{group, "sleep"}}, running(group))
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { return len(running(group)) == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(-group, 0), "it is still in the table")
	require.Error(t, cmd.Wait())
	require.Empty(t, running(group))
}
