#!/usr/bin/env bash
# Builds the wheel, installs it in an empty environment and runs the wheel's tests from outside the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$(cd "${VENV:-.venv}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "wheel-test: building"
# One build at a time: two would write the same build directory (scripts/bootstrap.sh).
mkdir -p build
(
  flock 9
  CMAKE_GENERATOR=Ninja PATH="$BIN:$PATH" \
    "$BIN/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/dist" .
) 9>build/.bootstrap.lock
"$BIN/python" -m venv "$work/venv"
echo "wheel-test: installing"
# Most of what is installed is imported never or once: to compile it all would take longer than the tests.
"$work/venv/bin/pip" install --quiet --no-compile "$work"/dist/*.whl pytest
cp -r tests/wheel "$work/tests"
cd "$work"
"$work/venv/bin/python" -Im pytest -c /dev/null --rootdir "$work/tests" "$work/tests"
