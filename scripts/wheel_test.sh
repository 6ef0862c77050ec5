#!/usr/bin/env bash
# Builds the wheel, installs it in an empty environment and runs the wheel's tests from outside the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$PWD/${VENV:-.venv}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "wheel-test: building"
CMAKE_GENERATOR=Ninja PATH="$BIN:$PATH" "$BIN/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/dist" .
"$BIN/python" -m venv "$work/venv"
echo "wheel-test: installing"
"$work/venv/bin/pip" install --quiet "$work"/dist/*.whl pytest
cp -r tests/wheel "$work/tests"
cd "$work"
"$work/venv/bin/python" -Im pytest -c /dev/null --rootdir "$work/tests" "$work/tests"
