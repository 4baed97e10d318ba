# The sandbox the scripts work in: a temporary directory with a copy of the
# source, a private PostgreSQL installation and a throw-away cluster, owned by an
# ordinary user, since PostgreSQL refuses to run as root. Sourced, not run.
#
# A script begins with
#
#   . "$(dirname "$0")/sandbox.sh"
#   inside_sandbox || enter_sandbox "$@"
#
# and from the second line on runs inside, with the copied source as its working
# directory. (Where it is not in script/, it sets sandbox_script to its path from
# the top of the source before.) Nothing outside is written to. However the script
# ends, the sandbox and every server in it are removed, unless $SANDBOX/keep exists.
# shellcheck shell=bash

# The server versions the extension is made for; other servers are refused.
OLDEST_SERVER=13
NEWEST_SERVER=19

SOURCE_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# Runs a function in the background, where an error ends it and a signal to this
# shell is acted on at once, with its output added to file $1. Leaves its status in
# `status`, rather than return it: what is called in a condition goes on after errors,
# so this must be a statement of its own, and so must what calls it.
apart() {
  local log=$1
  shift
  (
    set -e
    false
    true
  ) &
  ! wait $! || die "$1 is called in a condition"
  (
    set -e
    "$@"
  ) >>"$log" 2>&1 &
  running=$!
  status=0
  wait "$running" || status=$?
  running=
}

# Output is read by programs, here and in pg_regress: English, byte order.
plain_environment() {
  local name
  for name in $(compgen -e PG); do
    [[ "$name" =~ ^PG_(CONFIG|TEST_TIMEOUT_DEFAULT)$ ]] || unset "$name"
  done
  unset LANGUAGE MAKEFLAGS MAKELEVEL MFLAGS CDPATH
  export LC_ALL=C LANG=C
  # Where Debian keeps daemons, such as pgbouncer.
  export PATH=$PATH:/usr/sbin:/sbin
}

inside_sandbox() {
  [ -n "${SANDBOX:-}" ]
}

# Copies the source tree, without what is ignored or generated, to directory $1.
copy_source() {
  # The tree may belong to somebody else (a mounted volume): git would refuse.
  local -a git=(git -c 'safe.directory=*')
  mkdir -p "$1"
  cd "$SOURCE_TOP" || return
  if [ "$("${git[@]}" rev-parse --show-toplevel 2>/dev/null)" = "$SOURCE_TOP" ]; then
    # What is deleted but not yet committed is still listed: hence the filter.
    "${git[@]}" ls-files -z --cached --others --exclude-standard |
      perl -0 -lne 'print if -e || -l' | tar --null -T - -cf - | tar -C "$1" -xf -
  else
    tar --exclude=.git -cf - . | tar -C "$1" -xf -
  fi
}

# The user that servers run as: ourselves, or when root an unprivileged one.
sandbox_user() {
  if [ "$(id -u)" -ne 0 ]; then
    id -un
  elif id -u postgres >/dev/null 2>&1; then
    echo postgres
  else
    echo nobody
  fi
}

# Makes the sandbox, runs the calling script inside it with the same arguments,
# removes the sandbox and exits with the script's status.
enter_sandbox() {
  local user status=0
  local -a as_user=()
  plain_environment
  # Sockets have a short limit on their path, so not under a long TMPDIR.
  SANDBOX=$(TMPDIR=/tmp mktemp -d -t idemkit.XXXXXX)
  trap remove_sandbox EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  copy_source "$SANDBOX/src"
  mkdir "$SANDBOX/tmp"
  user=$(sandbox_user)
  if [ "$user" != "$(id -un)" ]; then
    chown -R "$user" "$SANDBOX"
    as_user=(runuser -u "$user" --)
  fi
  chmod 755 "$SANDBOX"
  cd "$SANDBOX/src" || exit
  # In the background, so that a signal to this shell is acted on at once.
  "${as_user[@]}" env SANDBOX="$SANDBOX" SANDBOX_ENTRY="${as_user[*]}" HOME="$SANDBOX" \
    TMPDIR="$SANDBOX/tmp" bash "$SANDBOX/src/${sandbox_script:-script/${0##*/}}" "$@" <&0 &
  wait $! || status=$?
  exit "$status"
}

# Ends the processes $@: signal $1 to each, and after ten seconds SIGKILL.
end_processes() {
  local signal=$1 tries
  shift
  for ((tries = 0; tries < 100; tries++)); do
    if [ "$tries" -eq 0 ]; then
      kill "-$signal" "$@" 2>/dev/null || true
    fi
    # kill fails when it reached none of them.
    kill -0 "$@" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$@" 2>/dev/null || true
}

# Ends whatever still runs in the sandbox, then deletes it. Programs are known by
# SANDBOX in their environment, servers, which overwrite theirs, by their pid files.
remove_sandbox() {
  local -a programs servers
  trap '' INT TERM HUP # what is begun here is finished
  [ ! -e "$SANDBOX/keep" ] || return 0
  mapfile -t programs < <(grep -lszxF "SANDBOX=$SANDBOX" /proc/[0-9]*/environ | cut -d / -f 3)
  end_processes TERM "${programs[@]}"
  mapfile -t servers < <(find "$SANDBOX" -name postmaster.pid -exec head -n 1 {} \; 2>/dev/null)
  end_processes QUIT "${servers[@]}"
  cd /
  rm -rf "$SANDBOX"
}

# Prints the pg_config to build with: $PG_CONFIG, else that of the highest
# supported version installed. Returns 1 where there is none.
find_pg_config() {
  local version candidate
  if [ -n "${PG_CONFIG:-}" ]; then
    command -v "$PG_CONFIG"
    return
  fi
  for ((version = NEWEST_SERVER; version >= OLDEST_SERVER; version--)); do
    for candidate in "/usr/lib/postgresql/$version/bin" "/usr/pgsql-$version/bin"; do
      if [ -x "$candidate/postgres" ] && [ -f "$("$candidate/pg_config" --pgxs 2>/dev/null)" ]; then
        echo "$candidate/pg_config"
        return
      fi
    done
  done
  command -v pg_config
}

# Builds the extension (and the client) and installs both privately. Exports
# PG_CONFIG and a PATH that starts with the private programs. $1: the log.
build_and_install() {
  local log=$1 jobs
  jobs=$(nproc 2>/dev/null || echo 1)
  PG_CONFIG=$(script/private-install "$(find_pg_config)" "$SANDBOX/pg") || return
  PATH=$("$PG_CONFIG" --bindir):$PATH
  export PG_CONFIG PATH
  make --silent -j"$jobs" PG_CONFIG="$PG_CONFIG" all >>"$log" 2>&1 || return
  make --silent PG_CONFIG="$PG_CONFIG" install >>"$log" 2>&1
}

# Installs the extension privately for the PostgreSQL that $OLD_PG_CONFIG names, too,
# and exports OLD_PG_CONFIG for that. To be called before anything is built: it works
# on a copy of the source. $1: the log.
build_for_old_server() {
  local log=$1
  OLD_PG_CONFIG=$(script/private-install "$OLD_PG_CONFIG" "$SANDBOX/old-pg") || return
  export OLD_PG_CONFIG
  cp -r . "$SANDBOX/old-src" || return
  make --silent -C "$SANDBOX/old-src" PG_CONFIG="$OLD_PG_CONFIG" with_llvm=no install >>"$log" 2>&1
}

# Makes a cluster and starts it, reachable only through its socket, and exports
# PGHOST, PGPORT, PGUSER and PGDATABASE for it. Further arguments are lines for
# postgresql.conf. Durability is off unless a line turns it on again: the
# cluster does not outlive the script.
start_cluster() {
  export PGHOST=$SANDBOX/run PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
  mkdir -p "$PGHOST"
  initdb -D "$SANDBOX/data" -U "$PGUSER" -A trust -E UTF8 --locale=C --no-sync \
    >"$SANDBOX/initdb.log" 2>&1 || {
    cat "$SANDBOX/initdb.log" >&2
    return 1
  }
  printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$PGHOST'" "port = $PGPORT" \
    'fsync = off' 'max_connections = 200' 'max_prepared_transactions = 20' \
    "timezone = 'UTC'" "log_line_prefix = '%m [%p] %q%a '" "$@" >>"$SANDBOX/data/postgresql.conf"
  pg_ctl -D "$SANDBOX/data" -l "$SANDBOX/server.log" -w -t 60 start >"$SANDBOX/pg_ctl.log" 2>&1 || {
    tail -n 20 "$SANDBOX/pg_ctl.log" "$SANDBOX/server.log" >&2
    return 1
  }
}

# Leaves the sandbox and its cluster in place and says how to use and end it.
keep_sandbox() {
  local name libdir
  libdir=$("$PG_CONFIG" --libdir)
  for name in PGHOST PGPORT PGUSER PGDATABASE; do
    printf 'export %s=%q\n' "$name" "${!name}"
  done >"$SANDBOX/environment"
  cat >>"$SANDBOX/environment" <<SH
export PATH='$("$PG_CONFIG" --bindir)':\$PATH
export LD_LIBRARY_PATH='$libdir'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH='$libdir/pkgconfig'\${PKG_CONFIG_PATH:+:\$PKG_CONFIG_PATH}
SH
  touch "$SANDBOX/keep"
  echo "Kept: $SANDBOX"
  echo "To use it, in a shell of yours:"
  echo "  . $SANDBOX/environment && psql"
  echo "To end it:"
  echo "  ${SANDBOX_ENTRY:+$SANDBOX_ENTRY }$(command -v pg_ctl) -D $SANDBOX/data -m fast stop && rm -rf $SANDBOX"
}
