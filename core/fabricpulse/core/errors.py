"""Errors that reach a person as one sentence."""


class UserError(Exception):
    """Something outside fabricpulse is wrong and a person can fix it.

    The message is one sentence: what failed, where, why, and what to do. The command line prints it without a
    traceback and exits with `exit_code`.
    """

    exit_code: int = 1


class OptionError(UserError):
    """An option or an argument cannot be meant, though it has the form that click asks for: ends as click's own do."""

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
    """What may be gone at the next try: an address in use, a full disk. A daemon that it stops is to be restarted."""
