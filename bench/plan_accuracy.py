#!/usr/bin/env python3
"""What `sluice plan` foretells beside what `sluice generate` then does.

  bench/plan_accuracy.py SLUICE MODEL.sluice ... [--emulate PROFILE.json] [-n TOKENS] [-r REPEATS]
                         [-t THREADS] [-c CONTEXT] [--shares 75,50,25]

Budgets are shares of what the plan calls everything. For each model the activations of one run are
recorded, and given to plan; it makes its own short runs for the compute time. Then generate runs for
each budget, with the page cache dropped before, and the median of its rate is compared. With
--emulate both read through an emulation of that device; without, the real one is used, and probed
anew, since it may have changed. An emulated device reads from the page cache, so that it does not
wait for the real one. Prints a Markdown table.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def drop_caches():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
    except OSError as error:
        print(f"page cache not dropped: {error}", file=sys.stderr)


def compare(options, model, scratch):
    common = ["-m", model, "-c", str(options.c), "-t", str(options.t)]
    device = ["--emulate", options.emulate, "--direct", "off"] if options.emulate else []
    generate = [options.sluice, "generate", *common, "--temp", "0", "--ignore-eos", "-p", options.p,
                "-n", str(options.n), "--json"]
    everything = run([*generate, "--dry-run"])["everything_bytes"]
    budgets = [f"{everything * share // 100 // 1024 + 1}K" for share in options.shares]
    trace = os.path.join(scratch, "trace")
    run([*generate, "--mem-budget", budgets[-1], "--record-activations", trace])
    if not options.emulate and os.path.exists(model + ".device.json"):
        os.remove(model + ".device.json")
    plan = run([options.sluice, "plan", *common, *device, "--json", "--profile", trace,
                "--mem-budget", ",".join(budgets)])
    rows = sorted(plan["budgets"], key=lambda r: r["budget_bytes"])
    measured = {b: [] for b in budgets}
    for _ in range(options.r):
        for budget in budgets:
            if not options.emulate:
                drop_caches()
            measured[budget].append(run([*generate, *device, "--mem-budget", budget]))
    order = sorted(zip(budgets, options.shares), key=lambda b: b[1])
    for (budget, share), row in zip(order, rows):
        rates = [m["decode"]["tokens_per_second"] for m in measured[budget]]
        rate = statistics.median(rates)
        middle = sorted(measured[budget], key=lambda m: m["decode"]["tokens_per_second"])
        decode = middle[len(middle) // 2]["decode"]
        name = os.path.basename(model).removesuffix(".sluice")
        print(f"| {name} | {share} % | {row['tokens_per_second']:.2f} | {rate:.2f} "
              f"({min(rates):.2f}-{max(rates):.2f}) | {row['tokens_per_second'] / rate - 1:+.0%} | "
              f"{row['hit_rate']:.1%}, {decode['hit_rate']:.1%} | {row['flash_mb_per_token']:.1f}, "
              f"{decode['flash_mb_per_token']:.1f} | {row['compute_ms_per_token']:.1f}, "
              f"{decode['compute_ms'] / decode['tokens']:.1f} | {row['limit']} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--emulate")
    parser.add_argument("-n", type=int, default=48)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-t", type=int, default=os.cpu_count())
    parser.add_argument("-c", type=int, default=256)
    parser.add_argument("-p", default="Once upon a time")
    parser.add_argument("--shares", default="75,50,25")
    options = parser.parse_args()
    options.shares = [int(s) for s in options.shares.split(",")]
    print("| model | budget | tokens/s foretold | measured (range) | error | hit rate foretold, "
          "measured | flash MB/token | compute ms/token | limit |\n|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            compare(options, model, scratch)


if __name__ == "__main__":
    main()
