#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: runs every fuzz target of a build for so many seconds, one on each core.
set -euo pipefail
build=$1 seconds=$2
targets=("$build"/tests/*_fuzz)
[ -x "${targets[0]}" ] || { echo "no fuzz target in $build/tests" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# What a target says is kept till it ends, so that two do not mix, and is printed if it failed.
fuzz_one() {
  local name ok=0
  name=$(basename "$1")
  mkdir "$3/$name"
  "$1" -max_total_time="$2" -rss_limit_mb=1024 -timeout=10 -print_final_stats=0 -verbosity=0 \
    "$3/$name" >"$3/$name.log" 2>&1 || ok=$?
  if [ $ok -ne 0 ]; then
    cat "$3/$name.log"
    echo "-- $name failed"
    return 1
  fi
  echo "-- $name: nothing found in $2 s"
}
export -f fuzz_one
printf '%s\n' "${targets[@]}" |
  xargs -P "$(nproc)" -I{} bash -c 'fuzz_one "$@"' _ {} "$seconds" "$scratch"
