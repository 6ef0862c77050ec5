"""Errors that a user sees as one sentence."""


class UserError(Exception):
    """Something outside fabricpulse is wrong and a person can fix it.

    The message is one sentence: what failed, where, why, and what to do. The command line prints it without a
    traceback and exits with `exit_code`.
    """

    exit_code: int = 1


class OptionError(UserError):
    """An option or argument is well-formed and not usable; the exit code is that of click's usage errors."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration file cannot be used; the message names file, line and key.

    excerpt : the line with a caret below the place, for a terminal; "" if there is none to show.
    """

    exit_code = 2

    def __init__(self, message: str, excerpt: str = "") -> None:
        super().__init__(message)
        self.excerpt = excerpt


class TemporaryError(UserError):
    """A cause that may pass: an address in use, a full disk. A daemon that it stops is to be restarted."""
