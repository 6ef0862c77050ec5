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
# Newer releases have promtool in a package of its own.
if ! scripts/unpack_packages.sh prometheus prometheus-alertmanager '?promtool'; then
  echo "tools: cannot download them; install prometheus and alertmanager to run the demo and their tests" >&2
  exit 0
fi
have_all || {
  echo "tools: unpacked, but prometheus, promtool, alertmanager or amtool is still missing in .tools/usr/bin" >&2
  exit 1
}
