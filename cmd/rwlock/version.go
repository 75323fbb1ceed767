//go:build unix

package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the version of Go",
		Args:  a.args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Println("rwlock", version())
			return unavailable(err)
		},
	}
}

// version returns what the build says about the module: its version, and the commit if it was built in a
// clone.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	text := info.Main.Version
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if commit := settings["vcs.revision"]; commit != "" {
		text += ", commit " + commit
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return text + ", " + info.GoVersion
}
