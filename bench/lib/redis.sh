# A Redis server that is as durable as the PostgreSQL beside it: every write is on disk
# before it is answered. Sourced, not run.
# shellcheck shell=bash

redis_pid=

# Builds the load generator; without redis-server the rows of Redis are left out.
prepare_redis() {
  if [ "$with_redis" = yes ]; then
    cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -o "$SANDBOX/redis-load" "$bench/redis/load.c" ||
      die "could not build bench/redis/load.c"
  fi
}

# Starts an empty server, in place of the one before, with $1 keys that are completed.
start_redis() {
  local tries
  stop_redis
  rm -rf "$SANDBOX/redis"
  mkdir -p "$SANDBOX/redis"
  # Its rewriting of the log would fall into somebody's measurement.
  redis-server --port 0 --unixsocket "$SANDBOX/redis/socket" --dir "$SANDBOX/redis" --save '' \
    --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0 \
    >"$SANDBOX/redis/log" 2>&1 &
  redis_pid=$!
  for ((tries = 0; tries < 100; tries++)); do
    if [ "$(redis PING 2>/dev/null)" = PONG ]; then
      load_redis "$results/raw/redis-fill.txt" fill 1 --rows="$1"
      return
    fi
    sleep 0.1
  done
  cat "$SANDBOX/redis/log" >&2
  die "the Redis server did not start"
}

stop_redis() {
  if [ -n "$redis_pid" ]; then
    kill "$redis_pid" 2>/dev/null || true
    wait "$redis_pid" 2>/dev/null || true
    redis_pid=
  fi
}

redis() {
  redis-cli -s "$SANDBOX/redis/socket" "$@"
}

# load_redis RAW KIND CLIENTS [OPTION…]: keeps the report, which looks like pgbench's.
load_redis() {
  local raw=$1 kind=$2 clients=$3
  shift 3
  "$SANDBOX/redis-load" --socket="$SANDBOX/redis/socket" --clients="$clients" \
    --result="$FINGERPRINT 200 $HEADERS $BODY" "$@" "$kind" >"$raw" 2>&1 || {
    tail -n 20 "$raw" >&2
    die "redis/load failed, see above: $kind"
  }
}

# measure_redis SECTION CASE CONTESTANT REPETITION KIND CLIENTS [OPTION…]
measure_redis() {
  local raw=$results/raw/$1-$2-$3-$4.txt kind=$5 clients=$6 before found expected=0
  local -a key=("${@:1:4}") timing
  shift 6
  read -ra timing < <(timed)
  say "${key[*]}"
  before=$(redis DBSIZE)
  load_redis "$raw" "$kind" "$clients" "${timing[@]}" "$@"
  found=$(($(redis DBSIZE) - before))
  [ "$kind" = replay ] || expected=$(transactions "$raw")
  [ "$found" = "$expected" ] || die "${key[*]}: $found keys were added, expected $expected"
  record "${key[@]}" rate "$(rate "$raw")"
}
