#!/usr/bin/env bash
# end_to_end.sh SLUICE: repacks the sample model and checks that greedy decoding gives the committed
# text, whatever the budget, engine, mode and thread count.
set -euo pipefail
cd "$(dirname "$0")/.."
sluice=$1
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

"$sluice" repack tools/sample/sample.gguf "$work/sample.sluice"
"$sluice" verify "$work/sample.sluice"
prompt=$(sed -n 1p tools/sample/expected_greedy.txt)
tail -n +4 tools/sample/expected_greedy.txt > "$work/expected"
least=$("$sluice" generate -m "$work/sample.sluice" -c 256 --dry-run --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["minimum_bytes"] // 1024 + 1)')
runs=0
for budget in "${least}K" 4M 64M; do
  for engine in auto pread mmap; do
    for mode in exact dense; do
      for threads in 1 2; do
        limit=(--mem-budget "$budget")
        if [ "$engine" = mmap ]; then limit=(); fi
        "$sluice" generate -m "$work/sample.sluice" -c 256 -p "$prompt" -n 64 --temp 0 --ignore-eos \
          --no-display-prompt -t "$threads" --mode "$mode" --io-engine "$engine" \
          "${limit[@]}" > "$work/text" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
        cmp "$work/text" <(printf %s "$(cat "$work/expected")") || {
          echo "other text with budget $budget, engine $engine, mode $mode, $threads threads" >&2
          exit 1
        }
        runs=$((runs + 1))
      done
    done
  done
done
echo "$runs runs gave the expected text"
