#!/usr/bin/env python3
"""What `sluice plan` foretells beside what `sluice generate` then does.

  bench/plan_accuracy.py SLUICE MODEL.sluice ... [--emulate PROFILE.json] [-n TOKENS] [-r REPEATS]
                         [-t THREADS] [-c CONTEXT] [--shares 75,62,50,37,25]

Budgets are shares of what the plan calls everything. For each model the activations of one run are
recorded, and given to plan; it makes its own short runs for the compute time. Then generate runs for
each budget, and the medians of its rate and of load + TTFT are compared. With --emulate both read
through an emulation of that device; without, the real one is used past the page cache, and probed
anew, since it may have changed. An emulated device reads from the page cache, so that it does not
wait for the real one. Prints a Markdown table.
"""
import argparse
import os
import statistics
import sys
import tempfile

from commands import run_json


def compare(options, model, scratch):
    common = ["-m", model, "-c", str(options.c), "-t", str(options.t)]
    device = ["--emulate", options.emulate, "--direct", "off"] if options.emulate else []
    generate = [options.sluice, "generate", *common, "--temp", "0", "--ignore-eos", "-p", options.p,
                "-n", str(options.n), "--json"]
    everything = run_json([*generate, "--dry-run"])["everything_bytes"]
    budgets = [f"{everything * share // 100 // 1024 + 1}K" for share in options.shares]
    trace = os.path.join(scratch, "trace")
    recorded = run_json([*generate, "--mem-budget", budgets[-1], "--record-activations", trace])
    n_prompt = len(recorded["prompt_tokens"])
    if not options.emulate and os.path.exists(model + ".device.json"):
        os.remove(model + ".device.json")
    plan = run_json([options.sluice, "plan", *common, *device, "--json", "--profile", trace,
                     "--mem-budget", ",".join(budgets), "--prompt-tokens", str(n_prompt)])
    rows = sorted(plan["budgets"], key=lambda r: r["budget_bytes"])
    measured = {b: [] for b in budgets}
    for _ in range(options.r):
        for budget in budgets:
            result = run_json([*generate, *device, "--mem-budget", budget])
            if not options.emulate and not result["direct_io"]:
                sys.exit(f"{model}: is read through the page cache, not from the device")
            measured[budget].append(result)
    order = sorted(zip(budgets, options.shares), key=lambda b: b[1])
    for (budget, share), row in zip(order, rows):
        rates = [m["decode"]["tokens_per_second"] for m in measured[budget]]
        rate = statistics.median(rates)
        middle = sorted(measured[budget], key=lambda m: m["decode"]["tokens_per_second"])
        decode = middle[len(middle) // 2]["decode"]
        starts = [(m["load_ms"] + m["ttft_ms"]) / 1e3 for m in measured[budget]]
        name = os.path.basename(model).removesuffix(".sluice")
        print(f"| {name} | {share} % | {row['tokens_per_second']:.2f} | {rate:.2f} "
              f"({min(rates):.2f}-{max(rates):.2f}) | {row['tokens_per_second'] / rate - 1:+.0%} | "
              f"{row['hit_rate']:.1%}, {decode['hit_rate']:.1%} | {row['flash_mb_per_token']:.1f}, "
              f"{decode['flash_mb_per_token']:.1f} | {row['compute_ms_per_token']:.1f}, "
              f"{decode['compute_ms'] / decode['tokens']:.1f} | "
              f"{(row['load_ms'] + row['ttft_ms']) / 1e3:.2f}, {statistics.median(starts):.2f} | "
              f"{row['limit']} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--emulate")
    parser.add_argument("-n", type=int, default=48)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-t", type=int, default=os.cpu_count())
    parser.add_argument("-c", type=int, default=256)
    parser.add_argument("-p", default=" ".join(["Once upon a time there was a model."] * 10))
    parser.add_argument("--shares", default="75,62,50,37,25")
    options = parser.parse_args()
    options.shares = [int(s) for s in options.shares.split(",")]
    print("| model | budget | tokens/s foretold | measured (range) | error | hit rate foretold, "
          "measured | flash MB/token | compute ms/token | load + TTFT s | limit |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            compare(options, model, scratch)


if __name__ == "__main__":
    main()
