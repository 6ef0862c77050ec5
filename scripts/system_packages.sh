#!/usr/bin/env bash
# Installs the Debian packages that the build and the lab need, with the argument "lint" those of the checks, with "bench"
# the peers that the benchmarks run beside ours; without root it says what is missing.
set -euo pipefail

declare -A package_of
if [[ ${1:-} == lint ]]; then
  package_of=([clang-format]=clang-format [clang-tidy]=clang-tidy [shellcheck]=shellcheck [jsonnetfmt]=jsonnet)
elif [[ ${1:-} == bench ]]; then
  package_of=(
    [chronyd]=chrony [chronyc]=chrony [ptp4l]=linuxptp
    [iperf3]=iperf3 [ucx_perftest]=ucx-utils
  )
else
  package_of=(
    [g++]=g++ [make]=make [ip]=iproute2 [tc]=iproute2 [nft]=nftables
    [flock]=util-linux [setpriv]=util-linux [nsenter]=util-linux
  )
fi
missing=()
for tool in "${!package_of[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}")
done
python="${PYTHON:-python3}"
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$python" - <<'PY' || missing+=(python3-dev)
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
PY
if ((${#missing[@]} == 0)); then exit 0; fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "system packages: missing: ${missing[*]}; install them (Debian names) or run as root on Debian or Ubuntu" >&2
  # A compiler and Python's headers are needed for anything at all; the rest only for parts of it.
  for package in "${missing[@]}"; do
    case $package in g++ | python3-venv | python3-dev) exit 1 ;; esac
  done
  exit 0
fi
echo "system packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
