#!/usr/bin/env bash
# Builds the wheels, installs that of the hosts in an empty environment and runs the wheel's tests from outside the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$(cd "${VENV:-.venv}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "wheel-test: building"
VENV=$BIN/.. scripts/wheel.sh "$work/dist" >/dev/null
"$BIN/python" -m venv --without-pip "$work/venv"
echo "wheel-test: installing"
# Most of what is installed is imported never or once: to compile it all would take longer than the tests.
"$BIN/pip" --python "$work/venv/bin/python" install --quiet --no-compile "$work"/dist/fabricpulse-*.whl pytest
cp -r tests/wheel "$work/tests"
cp pyproject.toml "$work"
cd "$work"
FABRICPULSE_DIST=$work/dist "$work/venv/bin/python" -Im pytest -c /dev/null --rootdir "$work/tests" "$work/tests"
