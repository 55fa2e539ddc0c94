"""The `antiphon` command: one file a subcommand, imported only when it is called."""
