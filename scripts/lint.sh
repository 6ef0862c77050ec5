#!/usr/bin/env bash
# All static checks. Stops at the first kind that fails and says which.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${VENV:-.venv}/bin

check() {
  echo "lint: $1"
  shift
  "$@"
}
check "ruff" "$BIN/ruff" check .
check "ruff format" "$BIN/ruff" format --check .
check "mypy" "$BIN/mypy"
mapfile -t shell < <(git ls-files '*.sh' '.ci/run')
check "shellcheck" shellcheck "${shell[@]}"
mapfile -t cpp < <(git ls-files '*.cc' '*.h')
check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
check "clang-tidy" scripts/clang_tidy.sh
mapfile -t jsonnet < <(git ls-files '*.jsonnet' '*.libsonnet')
check "jsonnetfmt" jsonnetfmt --test "${jsonnet[@]}"
check "rules" "$BIN/fabricpulse" rules render --check --output rules
check "reference" "$BIN/python" -Im fabricpulse.core.reference --check docs
