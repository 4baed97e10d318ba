# The sections about removing what is expired: sweep (how fast) and latency (what claims
# notice of it). Sourced, not run.
# shellcheck shell=bash

# Puts $1 expired rows into table removal, and a tenth of that live ones.
fill_removal_table() {
  query -c 'TRUNCATE removal' \
    -c "CALL bench_add('removal', 1, $1, expired => true)" \
    -c "CALL bench_add('removal', $1 + 1, $1 + $1 / 10)" \
    -c 'VACUUM ANALYZE removal' -c CHECKPOINT
}

# The statement by which a contestant removes what is expired, all of it.
removal_statement() {
  case $1 in
    sweep) echo "CALL idemkit_sweep(records => 'removal')" ;;
    vacuum) echo "SELECT idemkit_vacuum(records => 'removal')" ;;
    delete)
      echo "DELETE FROM removal WHERE lease_until < now()" \
        "AND (state = 'COMPLETED' OR lease_until < now() - interval '60 s')"
      ;;
    batches) echo "CALL bench_delete_in_batches(5000)" ;;
  esac
}

# Runs the contestant's statement, timed by psql, and keeps the output in file $2.
remove_expired() {
  PGOPTIONS='-c client_min_messages=warning' \
    query -c '\timing on' -c "$(removal_statement "$1")" >"$2"
}

measure_removal() {
  local contestant=$1 repetition=$2 milliseconds left
  local raw=$results/raw/sweep-$removal_rows-$contestant-$repetition.txt
  say "sweep $removal_rows $contestant $repetition"
  fill_removal_table "$removal_rows"
  remove_expired "$contestant" "$raw"
  left=$(query -c 'SELECT count(*) FROM removal')
  [ "$left" -eq $((removal_rows / 10)) ] || die "$contestant left $left rows of removal"
  milliseconds=$(sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$raw")
  record sweep "$removal_rows" "$contestant" "$repetition" rate \
    "$(awk -v rows="$removal_rows" -v ms="$milliseconds" 'BEGIN { print rows / ms * 1000 }')"
}

run_sweep() {
  interleave measure_removal sweep delete vacuum batches
}

# Claims arrive at a fixed rate, whatever the server does, and a claim that has to wait
# for its turn counts from when it was due: nothing is left out because it was slow.
# Takes the rate from what the machine can do, and the time from how long a sweep takes.
calibrate_latency() {
  local raw=$results/raw/latency-calibration size=1 started rate
  fill_removal_table "$latency_rows"
  load_postgres "$raw-rate.txt" idemkit-claim removal "$latency_clients" --time=2
  rate=$(rate "$raw-rate.txt")
  started=$SECONDS
  remove_expired sweep "$raw-sweep.txt"
  latency_rate=$(awk -v rate="$rate" -v share="$latency_share" 'BEGIN { print int(rate * share) + 1 }')
  latency_seconds=$(((SECONDS - started) * 2 + 3))
  record latency "$latency_rows" all 0 claims_per_second "$latency_rate"
}

# measure_latency CONTESTANT REPETITION: the latencies of claims while the contestant's
# removal runs, or while nothing does ("quiet"), from the times in pgbench's log.
measure_latency() {
  local contestant=$1 repetition=$2 load from until left percentile value
  local raw=$results/raw/latency-$latency_rows-$contestant-$repetition log=$SANDBOX/latency/log
  say "latency $latency_rows $contestant $repetition"
  fill_removal_table "$latency_rows"
  rm -rf "$SANDBOX/latency"
  mkdir -p "$SANDBOX/latency"
  load_postgres "$raw.txt" idemkit-claim removal "$latency_clients" --time="$latency_seconds" \
    --rate="$latency_rate" --log --log-prefix="$log" &
  load=$!
  sleep 1
  from=$EPOCHREALTIME
  if [ "$contestant" = quiet ]; then
    wait "$load"
    until=$EPOCHREALTIME
  else
    remove_expired "$contestant" "$raw-removal.txt"
    until=$EPOCHREALTIME
    wait "$load"
    left=$(query -c "SELECT count(*) FROM removal WHERE lease_until < now() - interval '1 hour'")
    [ "$left" -eq 0 ] || die "$contestant left $left expired rows beside claims"
  fi
  "$bench/lib/percentiles" "$from" "$until" "$log".* >"$raw.percentiles"
  for percentile in p50 p95 p99 max; do
    value=$(sed -n "s/^$percentile //p" "$raw.percentiles")
    [ -z "$value" ] || record latency "$latency_rows" "$contestant" "$repetition" "$percentile" "$value"
  done
}

run_latency() {
  local -a contestants=(quiet sweep)
  [ "$quick" = yes ] || contestants+=(delete)
  calibrate_latency
  interleave measure_latency "${contestants[@]}"
}
