# Minimal Debians in directories ("trees"), and commands run inside them. Sourced after
# sandbox.sh, not run; needs root and debootstrap.
#
# A script that has set `kept` (a directory, or nothing) calls begin_work and makes its
# trees under $work, which is that directory, or one that is removed when the script ends.
# What is mounted and what runs in a tree is in namespaces of its own and ends with them.
# shellcheck shell=bash

MIRROR=${MIRROR:-http://deb.debian.org/debian}

check_machine() {
  local program
  [ "$(id -u)" -eq 0 ] || die "making a Debian in a directory needs root"
  for program in debootstrap unshare setpriv; do
    command -v "$program" >/dev/null || die "$program is missing"
  done
  isolated true || die "no namespaces of mounts and processes to be had here"
}

# Makes the directory $work, and sees to its end.
begin_work() {
  check_machine
  running=
  work=${kept:-$(mktemp -d -t "idemkit-${0##*/}.XXXXXX")}
  chmod 755 "$work"
  trap remove_work EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

remove_work() {
  local tries
  if [ -n "$running" ]; then
    kill -KILL "$running" 2>/dev/null || true
  fi
  [ -z "$kept" ] || return 0
  # What runs in a tree ends at its own time after that signal.
  for ((tries = 0; tries < 100; tries++)); do
    rm -rf "$work" 2>/dev/null || true
    [ -e "$work" ] || return 0
    sleep 0.1
  done
  die "could not remove $work"
}

# Runs a command among mounts and processes of its own, which end when it ends, and
# when this shell does.
isolated() {
  setpriv --pdeathsig KILL unshare --mount --pid --ipc --fork --kill-child --mount-proc "$@"
}

# Runs a command inside tree $1, as root.
inside() {
  local tree=$1
  shift
  # shellcheck disable=SC2016
  isolated sh -euc '
    mount -t proc proc "$0/proc"
    mount -t tmpfs tmpfs "$0/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$0/dev/pts"
    exec chroot "$0" "$@"
  ' "$tree" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C CI=true \
    DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} "$@"
}

# Makes tree $2 of release $1. A release that debootstrap does not know yet is made as
# sid is.
make_tree() {
  local release=$1 tree=$2 recipe
  recipe=/usr/share/debootstrap/scripts/$release
  [ -e "$recipe" ] || recipe=${recipe%/*}/sid
  isolated debootstrap --variant=minbase "$release" "$tree" "$MIRROR" "$recipe"
  cp -L /etc/resolv.conf "$tree/etc/resolv.conf"
  echo "deb $MIRROR $release main" >"$tree/etc/apt/sources.list"
  # A mirror may be of some day past, its lists genuine but no longer valid.
  echo 'Acquire::Check-Valid-Until "false";' >"$tree/etc/apt/apt.conf.d/idemkit-tree"
  # Whatever the tree holds, it is not worth waiting for the disk.
  echo force-unsafe-io >"$tree/etc/dpkg/dpkg.cfg.d/idemkit-tree"
}

# The source as it is now, in a tree that may have had another one.
renew_source() {
  rm -rf "$1/src"
  copy_source "$1/src"
}
