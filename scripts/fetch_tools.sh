#!/usr/bin/env bash
# Finds Prometheus and Alertmanager, or unpacks Debian's packages of them into .tools/.
# Unpacked, not installed: a package's own service would start and take its port.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { PATH="$PATH:$PWD/.tools/usr/bin" command -v "$1" >/dev/null; }
have_all() { have prometheus && have promtool && { have alertmanager || have prometheus-alertmanager; } && have amtool; }
have_all && exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
  echo "tools: prometheus, promtool, alertmanager and amtool are not on PATH; install them to run the demo" >&2
  exit 0
fi
echo "tools: unpacking Debian's prometheus and prometheus-alertmanager into .tools/"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
(
  cd "$work"
  packages=(prometheus prometheus-alertmanager)
  # As root apt would drop to its own user, who may not write here, and warn about it.
  apt=(apt-get -qq -o APT::Sandbox::User="$(id -un)")
  if [[ $(id -u) == 0 ]]; then "${apt[@]}" update; fi
  # Newer releases have promtool in a package of its own.
  if apt-cache show promtool >/dev/null 2>&1; then packages+=(promtool); fi
  "${apt[@]}" download "${packages[@]}"
) || {
  echo "tools: cannot download them; install prometheus and alertmanager to run the demo and their tests" >&2
  exit 0
}
mkdir -p .tools
for deb in "$work"/*.deb; do dpkg -x "$deb" .tools; done
have_all || {
  echo "tools: unpacked, but prometheus, promtool, alertmanager or amtool is still missing in .tools/usr/bin" >&2
  exit 1
}
