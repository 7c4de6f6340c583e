package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/config"
)

const defaultFile = "cdc-relay.yaml"

// options are the flags of every command.
type options struct {
	file string
	set  []string
}

func (a *app) root() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "cdc-relay",
		Short: "Publish the committed rows of an outbox in PostgreSQL to Apache Kafka",
		Long: `cdc-relay streams the inserts of transactional outbox tables from a logical
replication slot of PostgreSQL to Apache Kafka, in commit order. It confirms a
position only after the brokers have acknowledged everything before it, so that
nothing is lost; after a crash some events come twice, each with the same id.

` + exitCodes,
		Example: `  cdc-relay config example > cdc-relay.yaml   # then say where database and brokers are
  cdc-relay setup --create-topics             # publication, slot, first mark, topics
  cdc-relay check                             # everything that it needs
  cdc-relay run`,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVarP(&o.file, "config", "c", "",
		"configuration file (default $CDC_RELAY_CONFIG, else "+defaultFile+" when it exists, else the environment alone)")
	root.PersistentFlags().StringArrayVar(&o.set, "set", nil, "set a key of the configuration, as log.level=debug or 'outbox[0].topic=orders'; may be repeated")
	root.AddCommand(a.setupCommand(o), a.adoptCommand(o), a.checkCommand(o), a.runCommand(o), a.statusCommand(o),
		a.backfillCommand(o), a.recoverCommand(o), a.replayCommand(o), a.verifyCommand(o),
		a.configCommand(o), a.versionCommand())
	tellExitCodes(root)
	return root
}

// tellExitCodes ends the help of every command with the exit codes.
func tellExitCodes(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.Long == "" {
			c.Long = c.Short + "."
		}
		c.Long += "\n\n" + exitCodes
		tellExitCodes(c)
	}
}

// noArgs refuses arguments as wrong usage, and names the command that was meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return usagef("%s takes no argument, but got %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	hint := ""
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return usagef("unknown command %q%s see %s --help", args[0], orSemicolon(hint), cmd.CommandPath())
}

func orSemicolon(hint string) string {
	if hint == "" {
		return ";"
	}
	return hint
}

// load reads the configuration.
func (a *app) load(o *options) (config.Config, error) {
	overrides := make(map[string]string)
	for _, kv := range o.set {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return config.Config{}, usagef("--set takes key=value, as --set log.level=debug")
		}
		overrides[k] = v
	}
	return config.Load(a.configFile(o), a.env, overrides)
}

// loadToConnect is load for a command that connects to the database.
func (a *app) loadToConnect(o *options) (config.Config, error) {
	cfg, err := a.load(o)
	if err == nil {
		err = cfg.Source.CheckTarget()
	}
	return cfg, err
}

func (a *app) configFile(o *options) string {
	if o.file != "" {
		return o.file
	}
	if file := a.getenv(config.EnvFile); file != "" {
		return file
	}
	if _, err := os.Stat(defaultFile); err == nil {
		return defaultFile
	}
	return ""
}

// getenv returns the last value of a variable, as the process would see it.
func (a *app) getenv(name string) string {
	value := ""
	for _, kv := range a.env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value = v
		}
	}
	return value
}

// interruptible returns a context that ends with SIGINT or SIGTERM, for commands
// that have nothing to finish.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}
