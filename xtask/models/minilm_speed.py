"""How fast all-MiniLM-L6-v2 runs, Lazuli and PyTorch in turns, each in a process of its own, on two threads of the CPU.

    python minilm_speed.py MINILM

MINILM is the built `examples/minilm` of lazuli-onnx; PyTorch is `torch` of the Python that runs this, with operators alone (fused
attention, linear layers, layer norms). Run it at the repository's root. Prints a row of Markdown for each shape: best and median of
the rounds, in milliseconds, and how fast Lazuli is beside PyTorch.
"""

import ast
import json
import os
import statistics
import struct
import subprocess
import sys
import time

from speed import settled

ROUNDS, SECONDS = 60, 6.0
SHAPES = [(1, 16), (1, 128), (8, 32), (32, 64)]
WEIGHTS = "data/minilm/model.safetensors"


def serve(n, length):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(2)
    with open(WEIGHTS, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), bytearray(file.read())
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            weights[name] = torch.frombuffer(data[start:end], dtype=torch.float32).reshape(entry["shape"]).clone()

    def linear(x, at):
        return F.linear(x, weights[f"{at}.weight"], weights[f"{at}.bias"])

    def norm(x, at):
        return F.layer_norm(x, (384,), weights[f"{at}.weight"], weights[f"{at}.bias"], 1e-12)

    tokens = torch.arange(1000, 1000 + n * length).reshape(n, length)

    def vectors():
        table = "embeddings.{}_embeddings.weight"
        places = weights[table.format("position")][:length] + weights[table.format("token_type")][0]
        x = norm(F.embedding(tokens, weights[table.format("word")]) + places, "embeddings.LayerNorm")
        for i in range(6):
            at = f"encoder.layer.{i}"

            def heads(name):
                return linear(x, f"{at}.attention.self.{name}").view(n, length, 12, 32).transpose(1, 2)

            mixed = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
            mixed = linear(mixed.transpose(1, 2).reshape(n, length, 384), f"{at}.attention.output.dense")
            seen = norm(x + mixed, f"{at}.attention.output.LayerNorm")
            wide = F.gelu(linear(seen, f"{at}.intermediate.dense"))
            x = norm(seen + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        means = x.mean(1)
        return F.normalize(means, dim=1).reshape(-1).tolist()

    with torch.inference_mode():
        print("ready", vectors()[:4], flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            vectors()
            print(time.perf_counter() - start, flush=True)


def measured(program, shape):
    sizes = [str(size) for size in shape]
    pipe, environment = subprocess.PIPE, {**os.environ, "LAZULI_THREADS": "2"}
    commands = {"lazuli": [program, *sizes], "pytorch": [sys.executable, __file__, "--serve", *sizes]}
    contenders = {
        name: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        for name, command in commands.items()
    }
    first = [ast.literal_eval(child.stdout.readline().removeprefix("ready")) for child in contenders.values()]
    assert all(abs(a - b) < 1e-5 for a, b in zip(*first)), first
    times, start = {name: [] for name in contenders}, time.perf_counter()
    for turn in range(ROUNDS + 5):
        for name, child in contenders.items():
            settled(contenders.values())
            child.stdin.write("\n")
            child.stdin.flush()
            seconds = float(child.stdout.readline())
            # The first rounds plan, allocate, pack weights and warm caches.
            if turn >= 5:
                times[name].append(seconds * 1e3)
        if turn >= 15 and time.perf_counter() - start > SECONDS:
            break
    for child in contenders.values():
        child.stdin.close()
        child.wait()
    return times


def main():
    for shape in SHAPES:
        times = measured(sys.argv[1], shape)
        best = {name: min(values) for name, values in times.items()}
        median = {name: statistics.median(values) for name, values in times.items()}
        cells = [f"{best[name]:.2f} / {median[name]:.2f}" for name in ("lazuli", "pytorch")]
        ratio = f"{best['pytorch'] / best['lazuli']:.2f} / {median['pytorch'] / median['lazuli']:.2f}"
        print(f"| {shape[0]} × {shape[1]} | {' | '.join(cells)} | {ratio} |", flush=True)


if sys.argv[1] == "--serve":
    serve(*map(int, sys.argv[2:4]))
else:
    main()
