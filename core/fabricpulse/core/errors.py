"""Errors that a user sees as one sentence."""

import errno

# Of this process or machine, whatever it was about to open: they say nothing of a file.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


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


def is_exhausted(error: BaseException | None) -> bool:
    """Whether it, or what it was raised from, is that descriptors or memory have run out."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return True
        error = error.__cause__
    return False
