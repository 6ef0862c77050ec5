#!/usr/bin/env bash
# Runs the README's own blocks, and nothing else, on three hosts and a monitor made of namespaces, with real Prometheus and
# Alertmanager; says how long it took from the first block to the first alert. As root, from a built tree (`make build`).
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$(cd "${VENV:-.venv}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The hosts have no network but their own: what pip would fetch is fetched here.
VENV=$BIN/.. scripts/wheel.sh "$work/dist"
echo "readme-test: fetching what the wheel depends on"
"$BIN/pip" download --quiet --dest "$work/wheelhouse" "$work"/dist/fabricpulse-*.whl
PYTHONPATH=$PWD "$BIN/python" -P -m tests.e2e.readme "$work"
