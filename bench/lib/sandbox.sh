# The way of bench/run and bench/churn into the sandbox of script/, and of their
# results out of it. Sourced, not run, with the top of the source as working directory.
# shellcheck shell=bash
# shellcheck source=script/sandbox.sh
. script/sandbox.sh

# What the sandbox starts in its copy of the source.
# shellcheck disable=SC2034 # read by enter_sandbox
sandbox_script=bench/${0##*/}

# Runs the calling script in a sandbox and puts what it leaves in its directory
# "results" into directory $1. The sandbox's user may not write there, so the files
# come as a tar archive, through file descriptor 3. A signal ends it all, and what was
# measured until then is kept.
run_in_sandbox() {
  local into=$1 inside unpacking status=0
  shift
  mkdir -p "$into"
  exec 3> >(exec tar -C "$into" -xf -)
  unpacking=$!
  (enter_sandbox "$@") &
  inside=$!
  exec 3>&-
  # A trap interrupts the wait.
  trap 'kill -TERM "$inside"' INT TERM HUP
  while kill -0 "$inside" 2>/dev/null; do
    wait "$inside" || status=$?
  done
  trap - INT TERM HUP
  wait "$unpacking" || [ "$status" -ne 0 ] || status=1
  return "$status"
}

# The other end of it: sends the results off when the script inside ends, however it
# ends, and stops the Redis server, which hides its environment from the sandbox.
send_results_at_exit() {
  results=$SANDBOX/results
  mkdir -p "$results/raw"
  trap 'stop_redis; tar -C "$results" -cf - . >&3' EXIT
}

# Where the code under test comes from, for the report. Asked outside: the sandbox has
# the files without their history.
describe_source() {
  local -a git=(git -c 'safe.directory=*')
  if ! "${git[@]}" describe --always --tags --abbrev=12 2>/dev/null; then
    echo "no git checkout"
  elif [ -n "$("${git[@]}" status --porcelain)" ]; then
    echo "with changes that are not committed"
  fi | paste -s -d ' '
}
