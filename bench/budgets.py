#!/usr/bin/env python3
"""Decode rate, hit rate and flash traffic of `sluice generate` at shares of a model's memory, beside
the same program with mapped weights (--io-engine mmap), in one run.

  bench/budgets.py SLUICE MODEL.sluice ... [-n TOKENS] [-t THREADS] [-r REPEATS] [-c CONTEXT]
                   [--shares 100,50,25]

100 % is what the plan calls everything: nothing is read twice. Every run is put into a memory cgroup
(v1 or v2; needs root) with the budget + 16 MiB as its limit, so that mapped weights cannot use more
page cache than the budget either; without a cgroup the mapped rows are marked as unlimited. Runs of
both kinds alternate, with the page cache dropped before each; medians are printed as a Markdown table
with the lowest and highest rate beside them. Weights that stay in memory are read while the model
loads, mapped ones when they are used: the time to the first token is load + TTFT.
"""
import argparse
import os
import statistics
import sys

from commands import try_json

PROGRAM_BYTES = 16 << 20
V1 = "/sys/fs/cgroup/memory"
V2 = "/sys/fs/cgroup"


class MemoryLimit:
    """A cgroup of our own; `limited` is False where none can be made."""

    def __init__(self, limit):
        self.path, self.limited = None, False
        v1 = os.path.exists(V1 + "/memory.limit_in_bytes")
        path = os.path.join(V1 if v1 else V2, "sluice-bench")
        try:
            os.makedirs(path, exist_ok=True)
            name = "memory.limit_in_bytes" if v1 else "memory.max"
            with open(os.path.join(path, name), "w") as f:
                f.write(str(limit))
            self.path, self.limited = path, True
        except OSError as error:
            print(f"no memory cgroup: {error}", file=sys.stderr)

    def enter(self):
        if self.path:
            with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
                f.write(str(os.getpid()))

    def remove(self):
        if self.path:
            try:
                os.rmdir(self.path)
            except OSError:
                pass


def drop_caches():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
    except OSError as error:
        print(f"page cache not dropped: {error}", file=sys.stderr)


def run(command, limit=None):
    drop_caches()
    return try_json(command, before=limit.enter if limit else None)


def measure(sluice, model, budget, options):
    base = [sluice, "generate", "-m", model, "-n", str(options.n), "-c", str(options.c), "-t",
            str(options.t), "--temp", "0", "--ignore-eos", "-p", options.p, "--json"]
    ways = {"stream": ["--mem-budget", f"{budget // 1024 + 1}K"], "mmap": ["--io-engine", "mmap"]}
    limit = MemoryLimit(budget + PROGRAM_BYTES)
    results = {way: [] for way in ways}
    for _ in range(options.r):
        for way, flags in ways.items():
            result = run(base + flags, limit)
            if result:
                results[way].append(result)
    texts = {r["text"] for way in results.values() for r in way}
    limit.remove()
    if len(texts) > 1:
        sys.exit(f"{model}: texts differ between runs")
    return results, limit.limited


def row(model, share, budget, way, results, limited):
    rates = [r["decode"]["tokens_per_second"] for r in results]
    middle = sorted(results, key=lambda r: r["decode"]["tokens_per_second"])[len(results) // 2]
    decode = middle["decode"]
    if way == "stream":
        hit = f"{100 * decode['hit_rate']:.1f} %"
        flash = f"{decode['flash_mb_per_token']:.1f}"
        stall = f"{100 * decode['stall_ms'] / max(decode['ms'], 1e-9):.0f} %"
    else:
        hit, flash, stall = "-", f"({decode['major_faults']} faults)", "-"
    name = os.path.basename(model).removesuffix(".sluice")
    label = way if limited or way == "stream" else way + " (unlimited)"
    return (f"| {name} | {share} % | {budget / 2**20:.0f} | {label} | {statistics.median(rates):.2f} "
            f"({min(rates):.2f}-{max(rates):.2f}) | {hit} | {flash} | {stall} | "
            f"{middle['load_ms']:.0f} + {middle['ttft_ms']:.0f} | "
            f"{middle['peak_rss_bytes'] / 2**20:.0f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-t", type=int, default=os.cpu_count())
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-c", type=int, default=512)
    parser.add_argument("-p", default="In the beginning there was a model of some size, and it lay on "
                        "flash, since memory was without room for it.")
    parser.add_argument("--shares", default="100,50,25")
    options = parser.parse_args()
    print("| model | budget | MiB | weights | tokens/s (range) | hit rate | flash MB/token | stall | "
          "load + TTFT ms | peak RSS MiB |\n|---|---|---|---|---|---|---|---|---|---|")
    for model in options.models:
        plan = run([options.sluice, "generate", "-m", model, "-c", str(options.c), "-t",
                    str(options.t), "--dry-run", "--json"])
        if plan is None:
            return 1
        for share in (int(s) for s in options.shares.split(",")):
            budget = plan["everything_bytes"] * share // 100
            if budget < plan["minimum_bytes"]:
                print(f"| {os.path.basename(model)} | {share} % | below the least budget |")
                continue
            results, limited = measure(options.sluice, model, budget, options)
            for way, found in results.items():
                if found:
                    print(row(model, share, budget, way, found, limited), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
