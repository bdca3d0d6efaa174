#!/usr/bin/env python3
"""`sluice iobench` beside fio: the same file, the same parameters, alternating runs.

  bench/fio.py SLUICE FILE [--fio PATH] [-r ROUNDS] [--bs 4k,16k,64k,512k] [--iodepth 1,32]
               [--rw read,randread] [--size 1g] [--runtime 1]

Both read with io_uring past the page cache, with the file registered, at most 8 reads given to the
device in a system call and as many reaped as there are, which is not fio's default but what iobench
does. iobench asks for huge pages, which large direct reads gain by; fio gets them too if there are some
(sysctl vm.nr_hugepages=32). The file is read once before, since the host of a virtual machine may not
have it in memory. Prints a Markdown table of the medians and of the median, lowest and highest ratio of
the two runs of a round: a machine changes its speed from minute to minute, both runs of a round meet
the same.
"""
import argparse
import statistics
import subprocess
import sys

from commands import run_json


def free_huge_pages():
    with open("/proc/meminfo") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("HugePages_Free:"))


def run_fio(options, rw, bs, depth):
    batch = ["--registerfiles=1", f"--iodepth_batch_submit={min(depth, 8)}",
             "--iodepth_batch_complete_min=1", f"--iodepth_batch_complete_max={depth}"]
    memory = ["--mem=shmhuge"] if free_huge_pages() >= 16 else []
    report = run_json([options.fio, *memory, "--name=x", f"--filename={options.file}", f"--rw={rw}",
                       f"--bs={bs}", f"--iodepth={depth}", f"--size={options.size}",
                       # Not "0.6": to fio that is none, and it reads on to the end of the file.
                       f"--runtime={round(options.runtime * 1000)}ms", "--time_based",
                       "--ramp_time=250ms", "--direct=1", "--ioengine=io_uring", *batch,
                       "--readonly", "--lat_percentiles=1", "--output-format=json"])
    read = report["jobs"][0]["read"]
    return {"mb": read["bw_bytes"] / 1e6, "p50": read["lat_ns"]["percentile"]["50.000000"] / 1e3,
            "cpu": (report["jobs"][0]["usr_cpu"] + report["jobs"][0]["sys_cpu"]) / 100
                   * report["jobs"][0]["job_runtime"] * 1e3 / max(read["total_ios"], 1)}


def run_sluice(options, rw, bs, depth):
    report = run_json([options.sluice, "iobench", options.file, f"--rw={rw}", f"--bs={bs}",
                       f"--iodepth={depth}", f"--size={options.size}", "--json", "--gate=0",
                       f"--runtime={options.runtime / 3}", "--ramp_time=0.25", "--repeats=3"])
    cell = report["cells"][0]
    if not cell["effective"]["direct"]:
        sys.exit(f"not direct: {cell['effective']['direct_note']}")
    return {"mb": cell["mb_per_s"]["median"], "p50": cell["latency_us"]["p50"],
            "cpu": cell["cpu_us_per_operation"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("file")
    parser.add_argument("--fio", default="fio")
    parser.add_argument("-r", type=int, default=5)
    parser.add_argument("--bs", default="4k,16k,64k,512k")
    parser.add_argument("--iodepth", default="1,32")
    parser.add_argument("--rw", default="read,randread")
    parser.add_argument("--size", default="1g")
    parser.add_argument("--runtime", type=float, default=3)
    options = parser.parse_args()
    subprocess.run(["dd", f"if={options.file}", "of=/dev/null", "bs=4M", "iflag=direct"],
                   stderr=subprocess.DEVNULL, check=True)
    print(f"fio with {'huge' if free_huge_pages() >= 16 else 'small'} pages\n")
    print("| rw | bs | depth | fio MB/s | sluice MB/s | ratio (rounds) | p50 us fio, sluice | "
          "CPU us/read fio, sluice |\n|---|---|---|---|---|---|---|---|")
    for rw in options.rw.split(","):
        for bs in options.bs.split(","):
            for depth in map(int, options.iodepth.split(",")):
                rounds = [(run_fio(options, rw, bs, depth), run_sluice(options, rw, bs, depth))
                          for _ in range(options.r)]
                median = [{key: statistics.median(r[way][key] for r in rounds)
                           for key in ("mb", "p50", "cpu")} for way in (0, 1)]
                ratios = [s["mb"] / f["mb"] for f, s in rounds]
                print(f"| {rw} | {bs} | {depth} | {median[0]['mb']:.1f} | {median[1]['mb']:.1f} | "
                      f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
                      f" | {median[0]['p50']:.1f}, {median[1]['p50']:.1f} | "
                      f"{median[0]['cpu']:.2f}, {median[1]['cpu']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
