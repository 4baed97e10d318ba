# Measuring: every run of a load goes through here, is checked against what it left in
# the table, and becomes lines of measurements.tsv. Sourced, not run.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the sizes and times are set by the script that sources this

# What every contestant stores, however it stores it.
FINGERPRINT=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
TOKEN=5d41402abc4b2a76b9719d911017c592
HEADERS='{"content-type": "application/json"}'
BODY='{"payment": "pay_8c1b2f", "status": "succeeded", "amount": 4990, "currency": "EUR", "created": "2024-05-17T09:30:12Z", "card": {"brand": "visa", "last4": "4242"}, "receipt": "https://pay.example/r/8c1b2f"}'

query() {
  psql -XAtq -v ON_ERROR_STOP=1 "$@"
}

say() {
  printf '%4d s  %s\n' "$SECONDS" "$*"
}

# record SECTION CASE CONTESTANT REPETITION METRIC VALUE
record() {
  local IFS=$'\t'
  [ -s "$results/measurements.tsv" ] ||
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' section case contestant repetition metric value \
      >"$results/measurements.tsv"
  [ -n "$6" ] || die "no value for: $*"
  printf '%s\n' "$*" >>"$results/measurements.tsv"
}

# interleave COMMAND CONTESTANT…: runs COMMAND CONTESTANT REPETITION for each of them,
# $repetitions times over. Every repetition begins with another contestant, so that none
# always comes first after the checkpoint or always follows the same neighbour.
interleave() {
  local command=$1 repetition i
  shift
  local -a contestants=("$@")
  for ((repetition = 1; repetition <= repetitions; repetition++)); do
    # Autovacuum is off: what it would do is done here, where it disturbs nobody.
    query -c 'VACUUM ANALYZE' -c CHECKPOINT
    for ((i = 0; i < $#; i++)); do
      "$command" "${contestants[(i + repetition - 1) % $#]}" "$repetition"
    done
  done
}

# Prints how many claimed and completed rows the table holds.
contents() {
  query -F ' ' -c "SELECT count(*) FILTER (WHERE state = 'CLAIMED'),
                          count(*) FILTER (WHERE state = 'COMPLETED') FROM $1"
}

# render SCRIPT TABLE: fills in a script of bench/scripts and prints the path of the
# result. The functions get no table where they work on their own one.
render() {
  local script=$1 table=$2 records="'$2'" rendered=$SANDBOX/scripts/$1-$2.sql
  [ "$table" != idemkit_records ] || records=NULL
  mkdir -p "$SANDBOX/scripts"
  sed -e "/^@new-key@/{r $bench/scripts/new-key.part" -e 'd}' \
    -e "/^@stored-key@/{r $bench/scripts/stored-key.part" -e 'd}' \
    -e "s/@table@/$table/g;s/@records@/$records/g" "$bench/scripts/$script.sql" >"$rendered"
  echo "$rendered"
}

# load_postgres RAW SCRIPT TABLE CLIENTS [OPTION…]: runs pgbench and keeps its report in
# file RAW. Fails unless every transaction succeeded.
load_postgres() {
  local raw=$1 script=$2 table=$3 clients=$4
  shift 4
  pgbench --no-vacuum --protocol=prepared --client="$clients" \
    --jobs=$((clients < processors ? clients : processors)) \
    --file="$(render "$script" "$table")" -D fingerprint=$FINGERPRINT -D token=$TOKEN \
    -D headers="$HEADERS" -D body="$BODY" "$@" >"$raw" 2>&1 || {
    tail -n 20 "$raw" >&2
    die "pgbench failed, see above: $script on $table"
  }
}

# Duration and warm-up as pgbench's options. The warm-up is a first second whose progress
# line lets it be subtracted: there sessions connect, load libraries and plan.
timed() {
  if [ "$warmup" -gt 0 ]; then
    echo "--time=$((seconds + warmup)) --progress=$warmup"
  else
    echo "--time=$seconds"
  fi
}

# Transactions a report of pgbench or redis/load counts, warm-up included.
transactions() {
  sed -n 's,^number of transactions actually processed: \([0-9]*\).*,\1,p' "$1"
}

# Transactions a second, warm-up excluded.
rate() {
  awk '
    /^progress: / && !first { first = $2; early = $2 * $4 }
    /^number of transactions actually processed:/ { split($6, n, "/") }
    /^tps = / { tps = $3 }
    END {
      duration = n[1] / tps
      print (first && duration - first > 0.5 ? (n[1] - early) / (duration - first) : tps)
    }' "$1"
}

# changes BEFORE AFTER: by how much the two counts that contents prints have grown.
changes() {
  local -a before after
  read -ra before <<<"$1"
  read -ra after <<<"$2"
  echo "$((after[0] - before[0])) $((after[1] - before[1]))"
}

# What n transactions of a kind must add to the table: claimed and completed rows.
expected_changes() {
  local kind=$1 n=$2
  case $kind in
    replay) echo "0 0" ;;
    claim) echo "$n 0" ;;
    cycle) echo "0 $n" ;;
    batch) echo "0 $((n * size))" ;;
  esac
}

# measure_postgres SECTION CASE CONTESTANT REPETITION KIND SCRIPT TABLE CLIENTS [OPTION…]:
# loads, checks that the table changed by exactly what was reported as done, and records
# the rate in operations (keys) a second.
measure_postgres() {
  local raw=$results/raw/$1-$2-$3-$4.txt kind=$5 script=$6 table=$7 clients=$8 before found expected
  local -a key=("${@:1:4}") timing
  shift 8
  read -ra timing < <(timed)
  say "${key[*]}"
  before=$(contents "$table")
  load_postgres "$raw" "$script" "$table" "$clients" "${timing[@]}" "$@"
  found=$(changes "$before" "$(contents "$table")")
  expected=$(expected_changes "$kind" "$(transactions "$raw")")
  [ "$found" = "$expected" ] ||
    die "${key[*]}: the table changed by \"$found\" (claimed, completed), expected \"$expected\""
  record "${key[@]}" rate "$(rate "$raw" | awk -v n="${size:-1}" '{ print $1 * n }')"
}
