#!/usr/bin/env bash
# Unpacks Debian packages into .tools/ without installing them: their services would start, take ports, or set the clock of
# the machine. Needs apt-get and dpkg, no root. Usage: unpack_packages.sh PACKAGE…; a name after ? may be missing.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/apt.sh
source scripts/lib/apt.sh

mkdir -p .tools
# One at a time: tests in several processes may want the same package.
exec 9>.tools/.lock
flock 9

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# Says which of the arguments there are, without the question marks.
wanted() {
  local name
  for name in "$@"; do
    if [[ $name != \?* ]]; then
      echo "$name"
    elif apt-cache show "${name#\?}" >/dev/null 2>&1; then
      echo "${name#\?}"
    fi
  done
}
# As root apt would drop to its own user, who may not write here, and warn about it.
download() {
  local packages
  mapfile -t packages < <(wanted "$@")
  (cd "$work" && rm -f ./*.deb && apt_get -o APT::Sandbox::User="$(id -un)" download "${packages[@]}")
}
# The lists of packages may be old, or not there yet.
if ! errors=$(download "$@" 2>&1); then
  if [[ $(id -u) == 0 ]]; then
    apt_get update
    download "$@"
  else
    echo "$errors" >&2
    exit 1
  fi
fi
for deb in "$work"/*.deb; do dpkg -x "$deb" .tools; done
