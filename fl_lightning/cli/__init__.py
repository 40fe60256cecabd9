"""The command line: the command ``fl-lightning``, its subcommands, and the parser of their settings."""
