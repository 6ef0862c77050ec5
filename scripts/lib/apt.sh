# Sourced by other scripts. apt_get ARGUMENTS…: apt-get, which waits up to 300 s for another apt on this machine, and
# is silent unless it fails.
# DPkg::Lock::Timeout covers the locks of dpkg, but not that of the package lists, so that is tried again.
# shellcheck shell=bash
apt_get() {
  local deadline=$((SECONDS + 300)) output
  while true; do
    if output=$(apt-get -qq -o DPkg::Lock::Timeout=300 "$@" 2>&1); then return 0; fi
    if [[ $output != *"Could not get lock"* && $output != *"Unable to lock"* ]] || ((SECONDS > deadline)); then
      echo "$output" >&2
      return 1
    fi
    sleep 2
  done
}
