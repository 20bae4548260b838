"""How fast models run, Lazuli and onnxruntime in turns, each in a process of its own, on two threads of the CPU.

    python speed.py MODELS CASES [--tract PROGRAM] [NAME…]

MODELS is the built `examples/models` of lazuli-onnx, CASES what `reference.py` wrote, PROGRAM the built `tract` of `bench/`.
onnxruntime runs with its defaults and with spinning off; the better one counts. Nobody else computes while one runs. Prints a row
of Markdown for each case: best and median of the rounds, in milliseconds; then how fast Lazuli is beside onnxruntime, and beside
tract, whose column says so where it does not load the model.
"""

import os
import statistics
import subprocess
import sys
import time

ROUNDS, SECONDS = 40, 8.0
CASES = [
    "magika",
    "silero-vad",
    "ocr-detect-text",
    "ocr-read-short",
    "ocr-read-long",
    "ocr-turned",
    "pitch-speech",
    "nsfw-china",
    "moonshine-encoder",
    "moonshine-decoder-9",
]


def serve(folder, spins):
    """A child: a run for every line that comes in, answered with its seconds."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    if spins == "off":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    inputs = {}
    with open(os.path.join(folder, "case.txt")) as file:
        for line in file:
            words = line.split()
            if words[0] == "model":
                model = words[1] if "/" in words[1] else os.path.join(folder, words[1])
            if words[0] == "input":
                inputs[words[1]] = np.load(os.path.join(folder, words[2]))
    run = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run.run(None, inputs)
        print(time.perf_counter() - start, flush=True)


def settled(children):
    """Waits until none of them computes any more: threads of onnxruntime look for work for tens of milliseconds after a run, on a
    core that the next contender needs."""

    def ticks():
        return [open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[11:13] for child in children]

    before = ticks()
    while True:
        time.sleep(0.03)
        now = ticks()
        if now == before:
            return
        before = now


def measured(models, folder, tract):
    environment = {**os.environ, "LAZULI_THREADS": "2"}
    commands = {
        "lazuli": [models, "--serve", folder],
        "onnxruntime": [sys.executable, __file__, "--serve", folder, "on"],
        "onnxruntime, no spinning": [sys.executable, __file__, "--serve", folder, "off"],
    }
    if tract:
        commands["tract"] = [tract, folder]
    pipe = subprocess.PIPE
    contenders = {
        name: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        for name, command in commands.items()
    }
    for name, child in list(contenders.items()):
        is_ready = child.stdout.readline().strip() == "ready"
        # What tract does not load or run it says on its error stream.
        assert is_ready or name == "tract"
        if not is_ready:
            child.wait()
            del contenders[name]
    times = {name: [] for name in contenders}
    start = time.perf_counter()
    for turn in range(ROUNDS + 3):
        for name, child in contenders.items():
            settled(contenders.values())
            child.stdin.write("\n")
            child.stdin.flush()
            seconds = float(child.stdout.readline())
            # The first rounds plan, allocate and warm caches.
            if turn >= 3:
                times[name].append(seconds * 1e3)
        if turn >= 8 and time.perf_counter() - start > SECONDS:
            break
    for child in contenders.values():
        child.stdin.close()
        child.wait()
    return times


def main():
    models, cases, *names = sys.argv[1:]
    tract = None
    if names[:1] == ["--tract"]:
        _, tract, *names = names
    for name in names or CASES:
        times = measured(models, os.path.join(cases, name), tract)
        best = {contender: min(values) for contender, values in times.items()}
        median = {contender: statistics.median(values) for contender, values in times.items()}
        settings = ("onnxruntime", "onnxruntime, no spinning")

        def cell(name):
            return f"{best[name]:.2f} / {median[name]:.2f}" if name in times else "does not load"

        def ratio(peer):
            return f"{best[peer] / best['lazuli']:.2f} / {median[peer] / median['lazuli']:.2f}"

        cells = [cell(c) for c in ("lazuli", *settings)] + [ratio(min(settings, key=best.get))]
        if tract:
            cells += [cell("tract"), ratio("tract") if "tract" in times else ""]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:4])
    else:
        main()
