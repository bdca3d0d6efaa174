#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: runs every fuzz target of a build for so many seconds.
set -euo pipefail
build=$1 seconds=$2
targets=("$build"/tests/*_fuzz)
[ -x "${targets[0]}" ] || { echo "no fuzz target in $build/tests" >&2; exit 1; }
for target in "${targets[@]}"; do
  echo "-- $(basename "$target")"
  corpus=$(mktemp -d)
  "$target" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -print_final_stats=0 \
    -verbosity=0 "$corpus"
  rm -r "$corpus"
done
