#!/usr/bin/env bash
# All static checks. Runs them all and says at the end which have failed.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${VENV:-.venv}/bin

failed=()
check() {
  local name=$1
  shift
  echo "lint: $name"
  "$@" || failed+=("$name")
}
check "ruff" "$BIN/ruff" check .
check "ruff format" "$BIN/ruff" format --check .
check "mypy" "$BIN/mypy"
mapfile -t shell < <(git ls-files '*.sh' '.ci/run')
check "shellcheck" shellcheck -x "${shell[@]}"
mapfile -t cpp < <(git ls-files '*.cc' '*.h')
check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
check "clang-tidy" scripts/clang_tidy.sh
mapfile -t jsonnet < <(git ls-files '*.jsonnet' '*.libsonnet')
check "jsonnetfmt" jsonnetfmt --test "${jsonnet[@]}"
check "rules" "$BIN/fabricpulse" rules render --check --output rules
check "reference" "$BIN/python" -Im fabricpulse.core.reference --check docs
if ((${#failed[@]})); then
  printf -v names '%s, ' "${failed[@]}"
  echo "lint: failed: ${names%, }" >&2
  exit 1
fi
echo "lint: all passed"
