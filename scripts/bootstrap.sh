#!/usr/bin/env bash
# Makes a fresh machine ready: Debian packages (as root), the virtual environment, the native parts.
# Environment: PYTHON (interpreter to start from), VENV (where to install).
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

# One build at a time: two would write the same build directory.
mkdir -p build
exec 9>build/.bootstrap.lock
flock 9

scripts/system_packages.sh

# It waits for downloads, as pip does.
scripts/fetch_tools.sh &
tools=$!

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "bootstrap: $("$PYTHON" --version) is too old, Python 3.11 or newer is needed; set PYTHON=" >&2
  exit 1
}
PYTHON=$PYTHON VENV=$VENV scripts/venv.sh
echo "bootstrap: installing Python packages"
"$VENV/bin/pip" install --quiet --group dev
echo "bootstrap: building"
# Without build isolation the build directory stays valid between runs, and only what changed is compiled.
CMAKE_GENERATOR=Ninja PATH="$PWD/$VENV/bin:$PATH" "$VENV/bin/pip" install --quiet --no-build-isolation --editable .
wait "$tools"
