#!/usr/bin/env bash
# Builds both distributions of the tree into a folder (default dist/): fabricpulse, tagged with the oldest glibc that its
# native parts run with, and fabricpulse-lab. Environment: VENV, the environment of `make build`.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$(cd "${VENV:-.venv}/bin" && pwd)
mkdir -p "${1:-dist}" build
dist=$(cd "${1:-dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { CMAKE_GENERATOR=Ninja PATH="$BIN:$PATH" "$BIN/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work" "$1"; }
# One build at a time: two would write the same build directory (scripts/bootstrap.sh).
(
  flock 9
  build .
  build ./lab
) 9>build/.bootstrap.lock

# The linker of this machine decides what is needed: the tag is what auditwheel reads in the binaries, not what is hoped.
# It also reads the libraries of this machine that they are linked with. What NCCL loads in place of libibverbs is linked
# with the libibverbs of the machine that it runs on, whichever that is: it is left out (a test reads what it needs).
without_libibverbs() {
  "$BIN/python" - "$1" "$2" <<'PYTHON'
import sys, zipfile

LEFT_OUT = b"/nccl/libibverbs.so"
with zipfile.ZipFile(sys.argv[1]) as wheel, zipfile.ZipFile(sys.argv[2], "w") as rest:
    for name in wheel.namelist():
        content = wheel.read(name)
        if name.endswith(".dist-info/RECORD"):
            content = b"".join(line for line in content.splitlines(True) if LEFT_OUT not in line)
        if not name.endswith(LEFT_OUT.decode()):
            rest.writestr(name, content)
PYTHON
}
mkdir "$work/read"
for wheel in "$work"/*-linux_*.whl; do
  without_libibverbs "$wheel" "$work/read/${wheel##*/}"
  tag=$("$BIN/auditwheel" show "$work/read/${wheel##*/}" 2>/dev/null | tr -s '[:space:]' ' ' |
    sed -n 's/.*consistent with the following platform tag: "\([a-z0-9_]*\)".*/\1/p')
  case $tag in
    manylinux_*) "$BIN/wheel" tags --remove --platform-tag "$tag" "$wheel" >/dev/null ;;
    *) echo "wheel: runs on this machine's distribution and newer ones only: auditwheel says ${tag:-nothing}" >&2 ;;
  esac
done
rm -f "$dist"/fabricpulse-[0-9]*.whl "$dist"/fabricpulse_lab-*.whl
mv "$work"/*.whl "$dist/"
ls -1 "$dist"/*.whl
