#!/usr/bin/env bash
# Installs the Debian packages that the build and the lab need, with the argument "lint" those of the checks, with "test"
# those of the tests alone, with "rdma" those of the RDMA lab, with "bench" peers that the benchmarks run beside ours (those with services of their own are
# unpacked to .tools/ instead, tests/fixtures/debian_tool.py); without root it says what is missing.
set -euo pipefail

declare -A package_of
if [[ ${1:-} == lint ]]; then
  package_of=([clang-format]=clang-format [clang-tidy]=clang-tidy [shellcheck]=shellcheck [jsonnetfmt]=jsonnet)
elif [[ ${1:-} == test ]]; then
  package_of=([sysctl]=procps) # and /bin/kill, which the units call
elif [[ ${1:-} == rdma ]]; then
  package_of=([qemu-system-x86_64]=qemu-system-x86 [busybox]=busybox-static [modprobe]=kmod [zstd]=zstd [rdma]=iproute2)
elif [[ ${1:-} == bench ]]; then
  package_of=([iperf3]=iperf3 [ucx_perftest]=ucx-utils)
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
if [[ ${1:-} == rdma ]]; then
  [[ -d /usr/lib/python3/dist-packages/pyverbs ]] || missing+=(python3-pyverbs)
  compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || missing+=(ibverbs-providers)
fi
# libFuzzer and the sanitizers are in a package of their own: whether a clang has them shows when it links with them.
links_libfuzzer() {
  local compiler scratch
  scratch=$(mktemp -d)
  for compiler in $(compgen -c clang++ | sort -u); do
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$compiler" -fsanitize=fuzzer,address,undefined -x c++ - -o "$scratch/probe" 2>/dev/null; then
      rm -r "$scratch"
      return 0
    fi
  done
  rm -r "$scratch"
  return 1
}
python="${PYTHON:-python3}"
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$python" - <<'PY' || missing+=(python3-dev)
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
PY
if [[ ${1:-} == test ]] && ! links_libfuzzer; then missing+=(clang libclang-rt-dev); fi
if [[ ${1:-} == test ]] && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then missing+=(postgresql); fi
# The clock's headers are compiled as a program outside of this tree finds them.
if [[ ${1:-} == test ]] && ! command -v pkg-config >/dev/null; then missing+=(pkg-config); fi
# Pages are tested in a browser, where the distribution has one without a desktop.
if [[ ${1:-} == test ]] && ! command -v chromium-headless-shell >/dev/null && apt-cache show chromium-headless-shell >/dev/null 2>&1; then
  missing+=(chromium-headless-shell)
fi
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
# shellcheck source=scripts/lib/apt.sh
source "$(dirname "$0")/lib/apt.sh"
apt_get update
if [[ " ${missing[*]} " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
  # The tests start a server of their own; nobody asked for one that stays.
  mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
fi
apt_get install -y --no-install-recommends -o Dpkg::Options::=--force-confold "${missing[@]}" || {
  # Older distributions name clang's runtime otherwise.
  [[ ${1:-} == test ]] || exit 1
  echo "system packages: cannot install ${missing[*]}; fuzz targets are built with g++ and a mutator of our own, pages are not tested in a browser" >&2
}
