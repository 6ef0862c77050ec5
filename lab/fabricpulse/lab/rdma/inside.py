"""`python -m fabricpulse.lab.rdma.inside RAILS HOST ARGV…`: builds the fleet in this guest, runs ARGV on HOST."""

import os
import sys

from fabricpulse.lab.rdma.fleet import build


def main() -> None:
    """Never returns: the program takes the place of this process."""
    rails, host, *argv = sys.argv[1:]
    build(int(rails))
    os.execvp("ip", ["ip", "netns", "exec", host, *argv])  # noqa: S606 - becomes the program on purpose


if __name__ == "__main__":
    main()
