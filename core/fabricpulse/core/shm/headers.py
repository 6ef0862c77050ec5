"""Where the C headers are with which programs of others read what the daemons share."""

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path


def include_dir() -> Path:
    """For the compiler's -I: `fabricpulse/clock_page.h` is below it. Of the checkout that this module stands in, or
    else what the wheel has brought.
    """
    checkout = Path(__file__).parents[4]
    if (checkout / "pyproject.toml").is_file() and (checkout / "core" / "include").is_dir():
        return checkout / "core" / "include"
    # Not .joinpath("data", "include"): the files of a namespace package take one step at a time on Python 3.11.
    return Path(str(files("fabricpulse") / "data" / "include"))


def pkg_config_file() -> str:
    """The text of a `fabricpulse.pc`: builds that use pkg-config, CMake or Meson find the headers by it."""
    folder = str(include_dir()).replace(" ", "\\ ")
    return (
        f"includedir={folder}\n\n"
        "Name: fabricpulse\n"
        "Description: Fleet time of this host, with its error bound\n"
        f"Version: {version('fabricpulse')}\n"
        "Cflags: -I${includedir}\n"
    )
