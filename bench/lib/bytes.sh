# The section that counts bytes: what a cycle writes to the log and leaves in the table.
# Sourced, not run.
# shellcheck shell=bash

# measure_bytes CONTESTANT REPETITION: $byte_cycles cycles on an empty table, beginning
# after a checkpoint. Nothing is timed, so no commit has to wait for the disk.
measure_bytes() {
  local contestant=$1 repetition=$2 script table notify=always raw before done log_bytes heap index
  raw=$results/raw/bytes-$byte_cycles-$contestant-$repetition.txt
  case $contestant in
    bare) script=bare-cycle table=bare ;;
    client) script=client-cycle table=client_side ;;
    *) script=idemkit-cycle table=idemkit_records notify=$contestant ;;
  esac
  say "bytes $byte_cycles $contestant $repetition"
  query -c "TRUNCATE $table" -c CHECKPOINT
  before=$(query -c 'SELECT pg_current_wal_insert_lsn()')
  PGOPTIONS="-c idemkit.notify=$notify -c synchronous_commit=off" \
    load_postgres "$raw" "$script" "$table" "$byte_clients" --transactions=$((byte_cycles / byte_clients))
  done=$(transactions "$raw")
  [ "$(contents "$table")" = "0 $done" ] || die "bytes: $done cycles left other rows than completed ones"
  IFS='|' read -r log_bytes heap index < <(
    query -c "SELECT pg_current_wal_insert_lsn() - '$before'::pg_lsn,
                     pg_table_size('$table'), pg_indexes_size('$table')" | tee -a "$raw"
  )
  record bytes "$byte_cycles" "$contestant" "$repetition" wal "$((log_bytes / done))"
  record bytes "$byte_cycles" "$contestant" "$repetition" table "$((heap / done))"
  record bytes "$byte_cycles" "$contestant" "$repetition" indexes "$((index / done))"
}

# The same for the log of Redis; it has no table but memory.
measure_redis_bytes() {
  local repetition=$1 raw=$results/raw/bytes-$byte_cycles-redis-$1.txt log memory log_before memory_before done
  say "bytes $byte_cycles redis $repetition"
  start_redis 1
  redis_usage >"$raw.before"
  read -r log_before memory_before <"$raw.before"
  load_redis "$raw" cycle "$byte_clients" --time=1
  redis_usage >"$raw.after"
  read -r log memory <"$raw.after"
  done=$(transactions "$raw")
  record bytes "$byte_cycles" redis "$repetition" wal "$(((log - log_before) / done))"
  record bytes "$byte_cycles" redis "$repetition" table "$(((memory - memory_before) / done))"
}

redis_usage() {
  redis INFO | tr -d '\r' | awk -F : '
    $1 == "aof_current_size" { log_bytes = $2 }
    $1 == "used_memory_dataset" { memory = $2 }
    END { print log_bytes, memory }'
}

measure_bytes_of() {
  if [ "$1" = redis ]; then
    measure_redis_bytes "$2"
  else
    measure_bytes "$1" "$2"
  fi
}

run_bytes() {
  local -a contestants=(awaited always bare client)
  [ "$with_redis" = no ] || contestants+=(redis)
  interleave measure_bytes_of "${contestants[@]}"
}
