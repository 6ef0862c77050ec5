#!/usr/bin/env bash
# Proves the set-up in a pristine Debian: a root file system made by debootstrap, with nothing in it but git, make and
# python3, in which the committed tree is cloned and a command runs (default: make demo, then make test).
#
#   scripts/pristine.sh bookworm|trixie [COMMAND…]
#
# As root. The base is made once and kept in ${XDG_CACHE_HOME:-~/.cache}/fabricpulse/pristine; each run writes into an
# overlay that is removed afterwards (KEEP=1 keeps it and says where). Mirror, proxies, certificates and pip's settings
# are those of this machine. The network is this machine's, for the downloads; all other namespaces are new.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:?which Debian: bookworm (12) or trixie (13)}
shift
command=${*:-make demo ARGS=--headless && make test}
[[ $(id -u) == 0 ]] || { echo "pristine: needs root" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fabricpulse/pristine
mkdir -p "$cache"
base=$cache/$suite

# The mirrors that this machine uses. $(REPO_URI) is of apt's format language, not the shell's.
mirror_of() {
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E "/$1/?\$" | sort | uniq -c | sort -rn |
    awk 'NR == 1 {print $2}'
}
mirror=$(mirror_of debian)
security=$(mirror_of debian-security)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [[ -z $mirror || ! -e $keyring ]]; then
  echo "pristine: no Debian mirror in this machine's package sources, or no $keyring" >&2
  exit 1
fi

make_base() {
  local work debootstrap=debootstrap
  work=$(mktemp -d -p "$cache")
  chmod 755 "$work"
  if ! command -v debootstrap >/dev/null; then
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download debootstrap && dpkg -x debootstrap_*.deb .)
    export DEBOOTSTRAP_DIR=$work/usr/share/debootstrap
    debootstrap=$work/usr/sbin/debootstrap
  fi
  "$debootstrap" --variant=minbase --include=ca-certificates,git,make,python3 --keyring="$keyring" \
    "$suite" "$work/root" "$mirror"
  {
    echo "deb $mirror $suite main"
    [[ -z $security ]] || echo "deb $security $suite-security main"
  } >"$work/root/etc/apt/sources.list"
  # How this machine reaches the network.
  apt-config dump | grep -E '^Acquire::((https?::)?(Proxy|http::Timeout|Retries)|Check-Valid-Until)' >"$work/root/etc/apt/apt.conf.d/50machine" || true
  cp -r /usr/local/share/ca-certificates/. "$work/root/usr/local/share/ca-certificates/" 2>/dev/null || true
  cp /etc/pip.conf "$work/root/etc/" 2>/dev/null || true
  chroot "$work/root" update-ca-certificates >/dev/null
  rm -rf "$work/root/var/cache/apt/archives/"*.deb
  mv "$work/root" "$base"
  rm -rf "$work"
}
(
  flock 9
  [[ -d $base ]] || { echo "pristine: making the base of $suite"; make_base; }
) 9>"$cache/.lock"

work=$(mktemp -d -p "$cache")
trap '[[ -n ${KEEP:-} ]] && echo "pristine: kept $work" || rm -rf "$work"' EXIT
mkdir "$work"/{upper,scratch,root}
git clone --quiet --no-local . "$work/upper/root/fabricpulse"
git -C "$work/upper/root/fabricpulse" remote remove origin
cp -L /etc/resolv.conf "$work/resolv.conf"

# Folders of wheels in pip's configuration are mounted inside under the same path.
links=()
for folder in ${PIP_FIND_LINKS:-}; do [[ $folder == /* && -d $folder ]] && links+=("$folder"); done
passed=(HOME=/root TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
while IFS= read -r name; do passed+=("$name=${!name}"); done < <(compgen -e | grep -iE '^(pip_|(https?|no|all)_proxy$|ssl_cert_|requests_ca_|git_ssl_|ci$)')

# pivot_root and not chroot: in a chroot no process may make a user namespace, and tests do.
export work base links_list="${links[*]}" command
# shellcheck disable=SC2016
unshare --mount --pid --fork --uts --ipc --kill-child --propagation private bash -euc '
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/scratch" "$work/root"
  cd "$work/root"
  mount -t proc proc proc
  mount -t sysfs sysfs sys
  mount --rbind /dev dev
  mount -t tmpfs tmpfs dev/shm
  mount -t tmpfs tmpfs run
  mount -t tmpfs -o mode=1777 tmpfs tmp
  touch etc/resolv.conf
  cp "$work/resolv.conf" etc/resolv.conf
  for folder in $links_list; do mkdir -p ".$folder"; mount --bind -o ro "$folder" ".$folder"; done
  hostname pristine
  grep -q pristine etc/hosts 2>/dev/null || echo "127.0.0.1 localhost pristine" >>etc/hosts
  mkdir -p mnt
  pivot_root . mnt
  umount -l /mnt
  cd /root/fabricpulse
  exec env -i "$@" bash -c "$command"
' pristine "${passed[@]}"
