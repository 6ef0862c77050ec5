#!/usr/bin/env bash
# All static checks, in parallel. Prints the output of each, and at the end which have failed.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${VENV:-.venv}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=()
processes=()
check() {
  local name=$1
  shift
  "$@" >"$work/$name" 2>&1 &
  names+=("$name")
  processes+=($!)
}
mapfile -t shell < <(git ls-files '*.sh' '.ci/run')
mapfile -t cpp < <(git ls-files '*.cc' '*.h')
mapfile -t jsonnet < <(git ls-files '*.jsonnet' '*.libsonnet')
# The two that take minutes first; clang-tidy has a process for each core.
check "mypy" "$BIN/mypy"
check "clang-tidy" scripts/clang_tidy.sh
check "ruff" "$BIN/ruff" check .
check "ruff format" "$BIN/ruff" format --check .
check "shellcheck" shellcheck -x "${shell[@]}"
check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
check "jsonnetfmt" jsonnetfmt --test "${jsonnet[@]}"
check "rules" "$BIN/fabricpulse" rules render --check --output-dir rules
check "rules for Perses" "$BIN/fabricpulse" rules render --check --format perses --output-dir rules
check "reference" "$BIN/python" -Im fabricpulse.core.reference --check docs

failed=()
for index in "${!names[@]}"; do
  wait "${processes[$index]}" || failed+=("${names[$index]}")
  echo "lint: ${names[$index]}"
  cat "$work/${names[$index]}"
done
if ((${#failed[@]})); then
  printf -v list '%s, ' "${failed[@]}"
  echo "lint: failed: ${list%, }" >&2
  exit 1
fi
echo "lint: all passed"
