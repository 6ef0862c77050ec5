#!/usr/bin/env bash
# Runs clang-tidy over the C++ sources that the build compiles, with the flags of the last build. A file that has
# passed is not looked at again until it, a header, or the configuration changes.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy: not installed; scripts/system_packages.sh says how" >&2
  exit 1
fi
database=$(find build -name compile_commands.json -printf '%T@ %h\n' 2>/dev/null | sort -rn | head -n 1 | cut -d' ' -f2)
if [[ -z $database ]]; then
  echo "clang-tidy: no compile_commands.json under build/; run make build" >&2
  exit 1
fi

passed=build/clang-tidy
mkdir -p "$passed"
mapfile -t headers < <(git ls-files '*.h')
common=$({ clang-tidy --version && cat .clang-tidy "${headers[@]}"; } | sha256sum | cut -c1-16)

find "$passed" -type f ! -name "$common-*" -delete

check() {
  local file=$1 mark
  mark=$passed/$common-$(sha256sum <"$file" | cut -c1-16)
  [[ -e $mark ]] && return
  # Counts of what was suppressed in other people's headers are noise.
  clang-tidy --quiet -p "$database" "$file" 2> >(grep -v 'warnings\? generated' >&2) || return 1
  touch "$mark"
}
export -f check
export passed common database

# shellcheck disable=SC2016 # $1 is for the inner shell
git ls-files '*.cc' | while read -r file; do
  if grep -qF "\"$PWD/$file\"" "$database/compile_commands.json"; then printf '%s\0' "$file"; fi
done | xargs -0 -r -n 1 -P "$(nproc)" bash -c 'check "$1"' _
