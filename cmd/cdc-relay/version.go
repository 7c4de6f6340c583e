package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when it is linked: -ldflags "-X main.version=v1.2.3".
var version string

// build is what is known of how the binary was made.
type build struct {
	version, revision string
}

func buildInfo() build {
	b := build{version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.version == "" {
		b.version = info.Main.Version
	}
	if b.version == "" || b.version == "(devel)" {
		b.version = "devel"
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if b.revision != "" && modified {
		b.revision += "-modified"
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  cdc-relay version",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			line := "cdc-relay " + b.version
			if b.revision != "" {
				line += " (" + b.revision + ")"
			}
			_, err := fmt.Fprintf(a.out, "%s %s %s/%s\n", line, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
