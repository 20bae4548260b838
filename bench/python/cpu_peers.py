"""The workloads of `src/bin/cpu.rs` for PyTorch (eager), JAX (jit; not the parts of models) and onnxruntime (products,
convolutions and the encoder), on the CPU.

Set-up (whichever peers are installed are measured):

    python3 -m venv .venv
    .venv/bin/pip install numpy jax torch onnxruntime onnx      # torch is large; leave it out to do without

Then add the peers to a result file of the Rust side and print everything together:

    cargo run --release --bin cpu -- --json cpu.json
    .venv/bin/python python/cpu_peers.py --json cpu.json
    cargo run --release --bin cpu -- --from cpu.json --markdown

The two processes cannot take turns, so run them on a quiet machine and trust gaps, not digits; `turns.py` makes them.
Inputs, result checks and fields are the same as on the Rust side (`inputs.rs`, `reference.rs`, `report.rs`).
"""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser(description="measure PyTorch, JAX and onnxruntime on the CPU")
parser.add_argument("--json", help="result file; rows of other contenders in it are kept, ratios are to its hand-written rows")
parser.add_argument("--rounds", type=int, default=15, help="samples per contender")
parser.add_argument("--threads", type=int, default=2, help="threads for everyone")
parser.add_argument("--only", action="append", default=[], help="only workloads whose name contains this")
parser.add_argument("--by", action="append", default=[], help="only this peer")
options = parser.parse_args()

# Before the libraries are imported: they read these once. Threads that spin would take the processor from other peers.
os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
if len(options.by) != 1:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# XLA has no thread setting; it counts the processors it may run on.
if hasattr(os, "sched_setaffinity"):
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[: options.threads])

import numpy as np  # noqa: E402

MI = 1 << 20
CHAIN_PAIRS = 50
LAYER_NORM_EPS = 1e-5
SAMPLE_SECONDS = 2e-3
CHAIN_SCALARS = [float(np.float32(0.9) + np.float32(0.001) * np.float32(i)) for i in range(CHAIN_PAIRS)]

# One layer's parameters, as in `Encoder::layer_shapes`.
ENCODER_HEADS = 12
ENCODER_LAYER = [(384,), (384,)] + [(384, 384), (384,)] * 4 + [(384,), (384,), (384, 1536), (1536,), (1536, 384), (384,)]

# name, kind, input shapes, extra, (absolute, relative) tolerance: as in `workload.rs`.
WORKLOADS = [
    ("chain of 3, 16 Mi", "chain3", [(16 * MI,)] * 3, None, (4e-6, 0)),
    ("chain of 100, 1 Mi", "chain100", [(MI,)] * 2, None, (1e-4, 0)),
    ("softmax [4096, 1024]", "softmax", [(4096, 1024)], None, (0, 2e-5)),
    ("layer_norm [4096, 1024]", "layer_norm", [(4096, 1024), (1024,), (1024,)], None, (2e-5, 2e-5)),
    ("sum 16 Mi", "sum", [(16 * MI,)], None, (0.5, 0)),
    ("sum axis 0 [4096, 4096]", "sum", [(4096, 4096)], 0, (2e-3, 0)),
    ("sum axis 1 [4096, 4096]", "sum", [(4096, 4096)], 1, (2e-3, 0)),
    ("matmul 256³", "matmul", [(256, 256)] * 2, None, (1e-3, 0)),
    ("matmul 1024³", "matmul", [(1024, 1024)] * 2, None, (1e-3, 0)),
    ("matmul 2048³", "matmul", [(2048, 2048)] * 2, None, (1e-3, 0)),
    ("matmul 1 × 1536²", "matmul", [(1, 1536), (1536, 1536)], None, (1e-3, 0)),
    ("matmul 1 × 4096²", "matmul", [(1, 4096), (4096, 4096)], None, (1e-3, 0)),
    ("matmul 8 × 1536²", "matmul", [(8, 1536), (1536, 1536)], None, (1e-3, 0)),
    ("matmul 64 × 1536²", "matmul", [(64, 1536), (1536, 1536)], None, (1e-3, 0)),
    *[(f"attention {n}{suffix}", "attention", [(12, n, 64)] * 3, causal, (2e-5, 0))
      for suffix, causal in [("", False), (", causal", True)] for n in (128, 512, 2048)],
    ("attention 1 over 2048", "attention", [(12, 1, 64), (12, 2048, 64), (12, 2048, 64)], False, (2e-5, 0)),
    ("conv 3 × 224² → 64, 7 × 7 by 2", "conv", [(1, 3, 224, 224), (64, 3, 7, 7), (64,)], 2, (1e-3, 0)),
    ("conv 64 × 56² → 64, 3 × 3", "conv", [(1, 64, 56, 56), (64, 64, 3, 3), (64,)], 1, (1e-3, 0)),
    ("conv 256 × 14² → 256, 3 × 3", "conv", [(1, 256, 14, 14), (256, 256, 3, 3), (256,)], 1, (1e-3, 0)),
    ("conv 512 × 7² → 512, 3 × 3", "conv", [(1, 512, 7, 7), (512, 512, 3, 3), (512,)], 1, (1e-3, 0)),
    ("conv 64 × 56² → 256, 1 × 1", "conv", [(1, 64, 56, 56), (256, 64, 1, 1), (256,)], 1, (1e-3, 0)),
    ("conv 8 × 64 × 56² → 64, 3 × 3", "conv", [(8, 64, 56, 56), (64, 64, 3, 3), (64,)], 1, (1e-3, 0)),
    ("encoder, 6 layers of 128 × 384", "encoder", [(128, 384)] + ENCODER_LAYER * 6, None, (5e-4, 0)),
    ("chain of 3, n = 16", "chain3", [(16,)] * 3, None, (4e-6, 0)),
]


def values(seed, shape):
    """The same numbers as `inputs.rs`: a hash of the index, its top 24 bits as a number in [-1, 1)."""
    x = np.arange(np.prod(shape), dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16))
    return ((x >> np.uint32(8)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape)


def input_scale(kind, shape):
    """As `Work::input_scale`: keeps the values of deep computations near one."""
    return np.float32(0.0625 if kind == "encoder" and len(shape) == 2 and shape[0] >= 384 else 1)


def reference(kind, inputs, axis):
    """The right answer in f64."""
    x = [i.astype(np.float64) for i in inputs]
    if kind == "chain3":
        return (x[0] + x[1]) * 5 - x[2]
    if kind == "chain100":
        y = x[0]
        for scalar in CHAIN_SCALARS:
            y = y * scalar + x[1]
        return y
    if kind == "softmax":
        e = np.exp(x[0] - x[0].max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    if kind == "layer_norm":
        centred = x[0] - x[0].mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS) * x[1] + x[2]
    if kind == "sum":
        return x[0].sum(axis)
    if kind == "attention":
        return plain_attention(x[0], x[1], x[2], axis)
    if kind == "conv":
        return plain_conv(x[0], x[1], x[2], axis)
    if kind == "encoder":
        return plain_encoder(x)
    return x[0] @ x[1]


def plain_attention(q, k, v, causal):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def plain_conv(x, weight, bias, stride):
    size = weight.shape[-1]
    padded = np.pad(x, [(0, 0), (0, 0), (size // 2, size // 2), (size // 2, size // 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]


def plain_encoder(x):
    import math

    def norm(x, w, b):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS) * w + b

    def by_head(x):
        return x.reshape(len(x), ENCODER_HEADS, -1).swapaxes(0, 1)

    y, parameters = x[0], x[1:]
    for i in range(0, len(parameters), len(ENCODER_LAYER)):
        p = parameters[i : i + len(ENCODER_LAYER)]
        normal = norm(y, p[0], p[1])
        q, k, v = (by_head(normal @ p[at] + p[at + 1]) for at in (2, 4, 6))
        seen = plain_attention(q, k, v, False).swapaxes(0, 1).reshape(y.shape)
        y = y + seen @ p[8] + p[9]
        up = norm(y, p[10], p[11]) @ p[12] + p[13]
        y = y + up * 0.5 * (1 + np.vectorize(math.erf)(up / math.sqrt(2))) @ p[14] + p[15]
    return y


def torch_call(kind, inputs, axis):
    """A function that computes one fresh result, as a user's line would."""
    import torch

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    x = [torch.from_numpy(i) for i in inputs]

    def chain100():
        y = x[0]
        for scalar in CHAIN_SCALARS:
            y = y * scalar + x[1]
        return y

    functional = torch.nn.functional

    def attention():
        # With a batch axis, which its fused kernels want.
        return functional.scaled_dot_product_attention(*(i[None] for i in x), is_causal=axis)[0]

    def encoder():
        y, parameters = x[0], x[1:]
        for i in range(0, len(parameters), len(ENCODER_LAYER)):
            p = parameters[i : i + len(ENCODER_LAYER)]
            normal = functional.layer_norm(y, y.shape[-1:], p[0], p[1], LAYER_NORM_EPS)
            by_head = [(torch.addmm(p[at + 1], normal, p[at])).view(1, len(y), ENCODER_HEADS, -1).transpose(1, 2) for at in (2, 4, 6)]
            seen = functional.scaled_dot_product_attention(*by_head)[0].transpose(0, 1).reshape(y.shape)
            y = y + torch.addmm(p[9], seen, p[8])
            normal = functional.layer_norm(y, y.shape[-1:], p[10], p[11], LAYER_NORM_EPS)
            y = y + torch.addmm(p[15], functional.gelu(torch.addmm(p[13], normal, p[12])), p[14])
        return y

    return {
        "attention": attention,
        "conv": lambda: functional.conv2d(x[0], x[1], x[2], stride=axis, padding=x[1].shape[-1] // 2),
        "encoder": encoder,
        "chain3": lambda: (x[0] + x[1]) * 5.0 - x[2],
        "chain100": chain100,
        "softmax": lambda: torch.softmax(x[0], -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x[0], x[1].shape, x[1], x[2], LAYER_NORM_EPS),
        "sum": lambda: x[0].sum() if axis is None else x[0].sum(axis),
        "matmul": lambda: x[0] @ x[1],
    }[kind]


def jax_call(kind, inputs, axis):
    """The same under `jit`, waiting for the result."""
    import jax
    import jax.numpy as jnp

    def chain100(x, t):
        for scalar in CHAIN_SCALARS:
            x = x * scalar + t
        return x

    def layer_norm(x, w, b):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS) * w + b

    if kind in ("attention", "conv", "encoder"):
        return None
    function = {
        "chain3": lambda a, b, c: (a + b) * 5.0 - c,
        "chain100": chain100,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "layer_norm": layer_norm,
        "sum": lambda x: jnp.sum(x, axis),
        "matmul": jnp.matmul,
    }[kind]
    x = [jnp.asarray(i) for i in inputs]
    compiled = jax.jit(function)
    return lambda: compiled(*x).block_until_ready()


def onnxruntime_call(kind, inputs, axis):
    """Products, convolutions and the encoder; its other operators are PyTorch's one by one."""
    if kind not in ("matmul", "conv", "encoder"):
        return None
    import onnxruntime
    from onnx import TensorProto, helper

    nodes, constants = [], []

    def node(op, *args, **attributes):
        nodes.append(helper.make_node(op, [*args], [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    def constant(array):
        # Weights are constants, as in a model, so that they may be packed once.
        kind = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
        constants.append(helper.make_tensor(f"c{len(constants)}", kind, array.shape, array.tobytes(), raw=True))
        return f"c{len(constants) - 1}"

    weights = [constant(i) for i in inputs[1:]]
    if kind == "matmul":
        y = node("MatMul", "x", weights[0])
    elif kind == "conv":
        y = node("Conv", "x", *weights, strides=[axis, axis], pads=[inputs[1].shape[-1] // 2] * 4)
    else:
        y, (length, width) = "x", inputs[0].shape
        apart = constant(np.array([length, ENCODER_HEADS, width // ENCODER_HEADS]))
        together = constant(np.array([length, width]))
        scale = constant(np.array([1 / np.sqrt(width // ENCODER_HEADS)], np.float32))
        for i in range(0, len(weights), len(ENCODER_LAYER)):
            p = weights[i : i + len(ENCODER_LAYER)]

            def linear(x, at):
                return node("Add", node("MatMul", x, p[at]), p[at + 1])

            normal = node("LayerNormalization", y, p[0], p[1], epsilon=LAYER_NORM_EPS)
            q, k, v = (node("Transpose", node("Reshape", linear(normal, at), apart), perm=perm)
                       for at, perm in [(2, [1, 0, 2]), (4, [1, 2, 0]), (6, [1, 0, 2])])
            shares = node("Softmax", node("Mul", node("MatMul", q, k), scale), axis=-1)
            seen = node("Reshape", node("Transpose", node("MatMul", shares, v), perm=[1, 0, 2]), together)
            y = node("Add", y, linear(seen, 8))
            up = node("Gelu", linear(node("LayerNormalization", y, p[10], p[11], epsilon=LAYER_NORM_EPS), 12))
            y = node("Add", y, linear(up, 14))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs[0].shape)
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": inputs[0]})[0]


def installed_peers():
    peers = {}
    calls = [("torch", "torch", torch_call), ("jax", "jax", jax_call), ("onnxruntime", "onnxruntime", onnxruntime_call)]
    for name, module, call in calls:
        if options.by and name not in options.by:
            continue
        try:
            __import__(module)
            peers[name] = call
        except ImportError:
            print(f"{name}: not installed, left out")
    return peers


def time_calls(call, n_calls):
    """Wall and CPU milliseconds per call; the untimed call warms the caches, as on the Rust side."""
    held = call()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(n_calls):
        held = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    del held
    return wall * 1e3 / n_calls, cpu * 1e3 / n_calls


def calls_to_fill(call):
    n_calls = 1
    while time_calls(call, n_calls)[0] * n_calls < SAMPLE_SECONDS * 1e3 / 2:
        n_calls *= 2
    return n_calls


def measure(workload, peers):
    """All peers on one workload, in turns."""
    _, kind, shapes, axis, _ = workload
    inputs = [values(seed, shape) * input_scale(kind, shape) for seed, shape in enumerate(shapes)]
    calls = {peer: call for peer, make in peers.items() if (call := make(kind, inputs, axis))}
    n_calls = {peer: calls_to_fill(call) for peer, call in calls.items()}
    samples = {peer: [] for peer in calls}
    for _ in range(options.rounds):
        for peer, call in calls.items():
            samples[peer].append(time_calls(call, n_calls[peer]))
    right = reference(kind, inputs, axis)
    rows = []
    for peer, call in calls.items():
        wall, cpu = zip(*samples[peer])
        rows.append(row(workload, peer, wall, cpu, np.asarray(call()), right))
    return rows


def row(workload, peer, wall, cpu, result, right):
    name, kind, shapes, _, (absolute, relative) = workload
    best = min(wall)
    n_values = sum(int(np.prod(shape)) for shape in shapes) + right.size
    # A single row reads more than it computes.
    computes = kind == "matmul" and shapes[0][0] > 1
    flops = 2 * shapes[0][0] * shapes[0][1] * shapes[1][1] if computes else None
    moves = not computes and n_values > 4096
    difference = np.abs(result.astype(np.float64) - right) if result.shape == right.shape else np.full(1, np.nan)
    # A comparison with NaN is false, so NaN is wrong.
    is_right = bool(np.all(difference <= absolute + relative * np.abs(right)))
    return {
        "workload": name,
        "contender": peer,
        "best_ms": best,
        "median_ms": sorted(wall)[len(wall) // 2],
        "cpu_ms": min(cpu),
        "gb_per_s": n_values * 4 / best / 1e6 if moves else None,
        "gflop_per_s": flops / best / 1e6 if flops else None,
        "ratio_to_hand": None,
        "cpu_ratio_to_hand": None,
        "max_abs_diff": finite(difference.max()),
        "max_rel_diff": finite((difference / np.maximum(np.abs(right), 1e-300)).max()),
        "verdict": "ok" if is_right else "WRONG",
    }


def finite(number):
    """JSON has no word for NaN and infinity."""
    return float(number) if np.isfinite(number) else None


def undisturbed_gb_per_s(row, n_threads):
    """A yardstick's rate; over CPU time if that is higher, since others may have had the processor."""
    return row["gb_per_s"] * max(1, row["best_ms"] * n_threads / row["cpu_ms"])


def merge(report, rows):
    """Puts the new rows behind the others of their workload; ratios and limits come from the file."""
    measured = {(r["workload"], r["contender"]) for r in rows}
    kept = [r for r in report["rows"] if (r["workload"], r["contender"]) not in measured]
    copy = next((undisturbed_gb_per_s(r, report["n_threads"]) for r in kept if r["workload"].startswith("copy")), None)
    for new in rows:
        hand = next((r for r in kept if r["workload"] == new["workload"] and r["contender"] == "hand"), None)
        if hand and hand["best_ms"]:
            new["ratio_to_hand"] = new["best_ms"] / hand["best_ms"]
            new["cpu_ratio_to_hand"] = new["cpu_ms"] / hand["cpu_ms"]
        if copy and new["gb_per_s"] and new["gb_per_s"] > 3 * copy and new["verdict"] == "ok":
            new["verdict"] = "IMPOSSIBLE"
        same = [i for i, r in enumerate(kept) if r["workload"] == new["workload"]]
        kept.insert(same[-1] + 1 if same else len(kept), new)
    report["rows"] = kept
    return report


def main():
    peers = installed_peers()
    rows = []
    for workload in WORKLOADS:
        if options.only and not any(text in workload[0] for text in options.only):
            continue
        for new in measure(workload, peers):
            print(f"{new['workload']:<24} {new['contender']:<8} best {new['best_ms']:9.4f}  median {new['median_ms']:9.4f}  "
                  f"cpu {new['cpu_ms']:9.4f} ms  diff {new['max_abs_diff']:.1e}  {new['verdict']}", flush=True)
            rows.append(new)
    if options.json:
        report = {"processor": "unknown processor", "n_threads": options.threads, "n_rounds": options.rounds, "rows": []}
        if os.path.exists(options.json):
            with open(options.json) as file:
                report = json.load(file)
        with open(options.json, "w") as file:
            json.dump(merge(report, rows), file, indent=2, ensure_ascii=False)
            file.write("\n")


main()
