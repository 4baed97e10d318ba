# The sections that measure rates: replay, claim, cycle, batch, sizes. Sourced, not run.
# shellcheck shell=bash

# Makes the tables of all contestants anew, with $1 completed rows.
refill_tables() {
  local table
  for table in idemkit_records bare client_side; do
    query -c "CALL bench_refill('$table', $1)"
  done
  if [ "$with_redis" = yes ]; then
    start_redis "$1"
  fi
}

# measure_kind CONTESTANT REPETITION: one run of a contestant of the section, which is a
# kind of work, with $clients clients.
measure_kind() {
  local contestant=$1 repetition=$2
  local -a as=("$section" "$clients" "$contestant" "$repetition" "$section")
  case $contestant in
    redis) measure_redis "${as[@]}" "$clients" --rows="$base_rows" ;;
    bare)
      # A bare SELECT reads the very rows that a replay reads.
      local table=bare
      [ "$section" != replay ] || table=idemkit_records
      measure_postgres "${as[@]}" "bare-$section" "$table" "$clients" -D rows="$base_rows"
      ;;
    client) measure_postgres "${as[@]}" "client-$section" client_side "$clients" -D rows="$base_rows" ;;
    star) measure_postgres "${as[@]}" "idemkit-star-$section" idemkit_records "$clients" -D rows="$base_rows" ;;
    always | awaited | never)
      PGOPTIONS="-c idemkit.notify=$contestant" \
        measure_postgres "${as[@]}" "idemkit-$section" idemkit_records "$clients" -D rows="$base_rows"
      ;;
  esac
}

# A quick run leaves out the settings of idemkit.notify that cannot make a difference: it
# concerns completions only.
run_kind() {
  local clients
  local -a contestants=(awaited bare client)
  section=$1 size=1
  if [ "$quick" = no ] || [ "$section" = cycle ]; then
    contestants+=(always never)
  fi
  [ "$section" != replay ] || contestants+=(star)
  [ "$with_redis" = no ] || contestants+=(redis)
  for clients in $client_counts; do
    refill_tables "$base_rows"
    interleave measure_kind "${contestants[@]}"
  done
}

run_replay() {
  run_kind replay
}

run_claim() {
  run_kind claim
}

run_cycle() {
  run_kind cycle
}

# measure_batch CONTESTANT-SIZE REPETITION: cycles in batches; rates are keys a second.
measure_batch() {
  local contestant=${1%-*} repetition=$2
  local size=${1##*-}
  local -a as=(batch "$size" "$contestant" "$repetition")
  case $contestant in
    redis-single) measure_redis "${as[@]}" cycle "$batch_clients" ;;
    redis-pipeline) measure_redis "${as[@]}" cycle "$batch_clients" --pipeline="$size" ;;
    bare) measure_postgres "${as[@]}" batch bare-batch bare "$batch_clients" -D size="$size" ;;
    awaited)
      PGOPTIONS='-c idemkit.notify=awaited' \
        measure_postgres "${as[@]}" batch idemkit-batch idemkit_records "$batch_clients" -D size="$size"
      ;;
  esac
}

# All sizes are interleaved: each is set against the same single calls of Redis.
run_batch() {
  local size
  local -a contestants=()
  refill_tables "$base_rows"
  [ "$with_redis" = no ] || contestants+=(redis-single-1)
  for size in $batch_sizes; do
    contestants+=("awaited-$size" "bare-$size")
    if [ "$with_redis" = yes ] && [ "$size" -gt 1 ]; then
      contestants+=("redis-pipeline-$size")
    fi
  done
  interleave measure_batch "${contestants[@]}"
}

# measure_size CONTESTANT-KIND-ROWS REPETITION. New claims make a table grow: a small one
# is made anew before each run, so that it is as small as its name says.
measure_size() {
  local contestant kind rows size=1
  IFS=- read -r contestant kind rows <<<"$1"
  if [ "$kind" = claim ] && [ "$rows" -le 100000 ]; then
    query -c "CALL bench_refill('size_$rows', $rows)" -c "VACUUM ANALYZE size_$rows"
  fi
  PGOPTIONS='-c idemkit.notify=awaited' \
    measure_postgres sizes "$rows" "$contestant-$kind" "$2" "$kind" "$contestant-$kind" \
    "size_$rows" "$size_clients" -D rows="$rows"
}

run_sizes() {
  local rows
  local -a contestants=()
  for rows in $table_sizes; do
    say "filling a table with $rows rows"
    query -c "SELECT FROM idemkit_create_table('size_$rows')" -c "CALL bench_refill('size_$rows', $rows)"
    contestants+=("idemkit-replay-$rows" "bare-replay-$rows" "idemkit-claim-$rows" "bare-claim-$rows")
  done
  interleave measure_size "${contestants[@]}"
  for rows in $table_sizes; do
    query -c "DROP TABLE size_$rows"
  done
}
