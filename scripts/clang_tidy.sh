#!/usr/bin/env bash
# Runs clang-tidy over the C++ sources that the build compiles, with the flags of the last build, and over the programs
# of tests/native. A file that has passed is not looked at again until it, a header, or the configuration changes.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy: not installed; scripts/system_packages.sh says how" >&2
  exit 1
fi
programs=build/clang-tidy-programs
database=$(find build -path "$programs" -prune -o -name compile_commands.json -printf '%T@ %h\n' 2>/dev/null | sort -rn | head -n 1 | cut -d' ' -f2)
if [[ -z $database ]]; then
  echo "clang-tidy: no compile_commands.json under build/; run make build" >&2
  exit 1
fi

PATH=$PWD/${VENV:-.venv}/bin:$PATH cmake -S tests/native -B "$programs" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null

passed=build/clang-tidy
mkdir -p "$passed"
mapfile -t headers < <(git ls-files '*.h')
common=$({ clang-tidy --version && cat .clang-tidy "${headers[@]}"; } | sha256sum | cut -c1-16)

find "$passed" -type f ! -name "$common-*" -delete

# The analyzer walks a function until it has seen this many states; its own limit, 225,000, takes twice as long.
check() {
  local effort=(-Xclang -analyzer-config -Xclang max-nodes=50000)
  local database=$1 file=$2 mark
  mark=$passed/$common-$(sha256sum <"$file" | cut -c1-16)
  [[ -e $mark ]] && return
  # Counts of what was suppressed in other people's headers are noise.
  clang-tidy --quiet -p "$database" "${effort[@]/#/--extra-arg=}" "$file" 2> >(grep -v 'warnings\? generated' >&2) || return 1
  touch "$mark"
}
export -f check
export passed common

git ls-files '*.cc' | while read -r file; do
  commands=$(grep -lF "\"$PWD/$file\"" {"$database","$programs"}/compile_commands.json) || true
  if [[ -z $commands ]]; then
    echo "$file: in no CMakeLists.txt, so nothing is known of how to check it" >&2
    exit 1
  fi
  printf '%s\0%s\0' "${commands%%/compile_commands.json*}" "$file"
done | {
  # shellcheck disable=SC2016 # $1 and $2 are for the inner shell
  xargs -0 -r -n 2 -P "$(nproc)" bash -c 'check "$1" "$2"' _
}
