"""Lazuli and the peers of `cpu_peers.py` in turns, so that fast and slow moments of the machine come to all of them. Each
runs in a process of its own, with the waiting threads that it comes with.

    cargo build --release --bin cpu
    .venv/bin/python python/turns.py --only matmul --turns 10

Milliseconds: the best of all turns, and the median of the turns' medians. The last columns are the fastest peer's time
over ours, best and median: above one, ours is faster. `lazuli, weight` has the right operand of a product as a resident
weight, which is what onnxruntime has: to it that operand is a constant of the model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = ["lazuli", "lazuli, weight"]
PEERS = ["torch", "jax", "onnxruntime"]

parser = argparse.ArgumentParser(description="measure Lazuli, PyTorch, JAX and onnxruntime on the CPU, in turns")
parser.add_argument("--cpu", default=os.path.join(HERE, "../target/release/cpu"), help="the Rust side, built")
parser.add_argument("--turns", type=int, default=10, help="how often everyone comes")
parser.add_argument("--rounds", type=int, default=5, help="samples in a turn")
parser.add_argument("--only", action="append", default=[], help="only workloads whose name contains this")
options = parser.parse_args()


def turn(command):
    """The rows that one contender measured."""
    only = [word for text in options.only for word in ("--only", text)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "turn.json")
        subprocess.run([*command, *only, "--rounds", str(options.rounds), "--json", path], check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)["rows"]


def main():
    commands = [[options.cpu, "--by", name] for name in OURS]
    commands += [[sys.executable, os.path.join(HERE, "cpu_peers.py"), "--by", peer] for peer in PEERS]
    best, medians = defaultdict(dict), defaultdict(lambda: defaultdict(list))
    for _ in range(options.turns):
        for row in (row for command in commands for row in turn(command)):
            workload, contender = row["workload"], row["contender"]
            # A yardstick in a slow moment makes fast ones impossible.
            if row["verdict"] not in ("ok", "IMPOSSIBLE"):
                sys.exit(f"{contender} on {workload}: {row['verdict']}")
            best[workload][contender] = min(row["best_ms"], best[workload].get(contender, float("inf")))
            medians[workload][contender].append(row["median_ms"])

    print("| workload |", " | ".join([*OURS, *PEERS, *(f"peer / {name}" for name in OURS)]), "|")
    print("|---" + "|---:" * (2 * len(OURS) + len(PEERS)) + "|")
    for workload, times in best.items():
        if "lazuli" not in times:
            continue
        middle = {contender: statistics.median(times) for contender, times in medians[workload].items()}
        cells = [f"{times[c]:.3g} ({middle[c]:.3g})" if c in times else "" for c in [*OURS, *PEERS]]
        for name in OURS:
            ratios = [min(t[p] for p in PEERS if p in t) / t[name] for t in (times, middle) if name in t]
            cells.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        print(f"| {workload} |", " | ".join(cells), "|", flush=True)


main()
