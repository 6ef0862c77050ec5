#!/usr/bin/env bash
# Makes the virtual environment if there is none that works. It holds absolute paths: after its folder has moved, or its
# interpreter is gone, it is made anew. Environment: PYTHON (interpreter to start from), VENV (where to install).
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

if "$VENV/bin/pip" --version >/dev/null 2>&1; then
  exit 0
fi
if [[ -e $VENV && ! -e $VENV/pyvenv.cfg ]]; then
  echo "bootstrap: $VENV exists and is no virtual environment; move it away, or set VENV=" >&2
  exit 1
fi
echo "bootstrap: creating $VENV"
"$PYTHON" -m venv --clear "$VENV"
"$VENV/bin/pip" install --quiet --upgrade "pip>=25.1"
