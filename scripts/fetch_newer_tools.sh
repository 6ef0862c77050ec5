#!/usr/bin/env bash
# Unpacks the newest Prometheus and Alertmanager that Debian has (suite forky, or $1) into .tools/newer/, beside those
# of this machine's own release, so that tests can run with both: FABRICPULSE_TOOLS=.tools/newer/usr/bin make test
# Nothing is installed and this machine's own package sources stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:-forky}
target=.tools/newer

for tool in apt-get dpkg; do
  command -v "$tool" >/dev/null || {
    echo "newer tools: $tool is not on PATH; this needs Debian or Ubuntu" >&2
    exit 1
  }
done
# The mirror that this machine already uses for Debian. $(REPO_URI) is of apt's format language, not the shell's.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort | uniq -c |
  sort -rn | awk 'NR == 1 {print $2}')
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [[ -z $mirror || ! -e $keyring ]]; then
  echo "newer tools: no Debian mirror in this machine's package sources, or no $keyring" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists/partial,cache/archives/partial,sources,debs}
cat >"$work/sources/newer.sources" <<SOURCES
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Signed-By: $keyring
SOURCES
options=(-qq -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work/sources"
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o "Dir::State::status=/dev/null")
apt-get "${options[@]}" update
packages=(prometheus prometheus-alertmanager)
# Newer releases have promtool in a package of its own.
if apt-cache "${options[@]:1}" show promtool >/dev/null 2>&1; then packages+=(promtool); fi
(cd "$work/debs" && apt-get "${options[@]}" -o APT::Sandbox::User=root download "${packages[@]}")
rm -rf "$target"
mkdir -p "$target"
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$target"; done
"$target/usr/bin/prometheus" --version | head -n 1
"$target/usr/bin/prometheus-alertmanager" --version | head -n 1
