"""Subcommands of `fabricpulse audit`, a file each; light to import, as a health check runs them often."""
