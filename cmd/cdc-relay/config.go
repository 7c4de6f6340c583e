package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/config"
)

func (a *app) configCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Show the configuration",
		Example: "  cdc-relay config example\n  cdc-relay config print",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "example",
		Short:   "Print a commented file with every key and its default",
		Example: "  cdc-relay config example > cdc-relay.yaml",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return config.Example(a.out) },
	}, &cobra.Command{
		Use:   "print",
		Short: "Print the configuration in effect, with secrets masked",
		Long: `Print the configuration in effect: the file, then the environment, then --set,
each over the ones before and all over the defaults. Secrets are masked.`,
		Example: "  cdc-relay config print\n  CDC_RELAY_LOG_LEVEL=debug cdc-relay config print --config relay.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load(o)
			if err != nil {
				return err
			}
			a.warn(cfg)
			return config.Print(a.out, cfg)
		},
	}, a.docCommand())
	return cmd
}

// warn prints what is rarely meant.
func (a *app) warn(cfg config.Config) {
	for _, w := range cfg.Warnings() {
		_, _ = fmt.Fprintf(a.err, "warning: %s\n", w)
	}
}

func (a *app) docCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:    "doc",
		Short:  "Write the reference of the configuration, docs/configuration.md",
		Hidden: true,
		Args:   noArgs,
		RunE: func(*cobra.Command, []string) error {
			if output == "" {
				return config.Doc(a.out)
			}
			var b bytes.Buffer
			if err := config.Doc(&b); err != nil {
				return err
			}
			return os.WriteFile(output, b.Bytes(), 0o644)
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "file to write; standard output without it")
	return cmd
}
