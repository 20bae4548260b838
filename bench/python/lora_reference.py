"""Trains low-rank adapters of a language model in PyTorch, in f32 with the widened weights of a GGUF file, and compares every loss with
those of Lazuli's example 17_lora. Knows the llama architecture. Needs PyPI's gguf, NumPy, safetensors and torch.

    cargo run --release --example 17_lora -- MODEL.gguf TEXT.txt OUT.safetensors 60 > LOSSES.txt
    python3 lora_reference.py MODEL.gguf OUT.initial.safetensors LOSSES.txt [KEPT.json]

The example writes what both start with, the adapters and the tokens of the text. KEPT.json gets those tokens and PyTorch's losses,
which crates/lazuli-text/examples/smollm2.rs compares with. The program fails if a loss differs by more than 1 %.
"""

import json
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file

# As in the example.
ALPHA, RATE, LENGTH = 16.0, 2e-3, 128

path, start, printed, *kept = sys.argv[1:]
file = GGUFReader(path)
number = lambda key: file.fields[f"llama.{key}"].contents()
n_layers, n_heads, n_kv = number("block_count"), number("attention.head_count"), number("attention.head_count_kv")
eps, base = number("attention.layer_norm_rms_epsilon"), number("rope.freq_base")
widened = lambda t: np.array(dequantize(t.data, t.tensor_type), dtype=np.float32).reshape(tuple(reversed(t.shape.tolist())))
weights = {t.name: torch.from_numpy(widened(t)) for t in file.tensors}
dim = weights["blk.0.attn_q.weight"].shape[0] // n_heads

adapters = load_file(start)
tokens = adapters.pop("tokens").long()
for adapter in adapters.values():
    adapter.requires_grad_()

rates = base ** (-2.0 * torch.arange(dim // 2, dtype=torch.float64) / dim)
angles = torch.outer(torch.arange(LENGTH, dtype=torch.float64), rates)
cos, sin = angles.cos().float(), angles.sin().float()


def turn(x):
    """Neighbours are a pair: llama's GGUF files have their rows so. `x` is [heads, length, features]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def norm(x, name):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weights[name]


def adapted(x, i, part, name):
    """A projection with the adapter beside it."""
    a, b = adapters[f"layers.{i}.{name}.a"], adapters[f"layers.{i}.{name}.b"]
    return x @ weights[f"blk.{i}.{part}.weight"].T + x @ a.T @ b.T * (ALPHA / a.shape[0])


def logits(ids):
    x = weights["token_embd.weight"][ids]
    heads = lambda y, n: y.reshape(len(ids), n, dim).transpose(0, 1)
    for i in range(n_layers):
        w = lambda part: weights[f"blk.{i}.{part}.weight"].T
        h = norm(x, f"blk.{i}.attn_norm.weight")
        q = turn(heads(adapted(h, i, "attn_q", "query"), n_heads))
        k = turn(heads(h @ w("attn_k"), n_kv))
        v = heads(adapted(h, i, "attn_v", "value"), n_kv)
        k, v = (t.repeat_interleave(n_heads // n_kv, 0) for t in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + found.transpose(0, 1).flatten(1) @ w("attn_output")
        h = norm(x, f"blk.{i}.ffn_norm.weight")
        x = x + (F.silu(h @ w("ffn_gate")) * (h @ w("ffn_up"))) @ w("ffn_down")
    output = weights.get("output.weight", weights["token_embd.weight"])
    return norm(x, "output_norm.weight") @ output.T


lazuli = [float(x) for x in re.findall(r"^step +\d+ +loss +(\S+)", open(printed).read(), re.M)]
optimizer = torch.optim.Adam(adapters.values(), lr=RATE)
losses = []
for step, ours in enumerate(lazuli):
    begin = (step * LENGTH) % (len(tokens) - LENGTH)
    ids = tokens[begin : begin + LENGTH + 1]
    loss = F.cross_entropy(logits(ids[:-1]), ids[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(f"step {step:>3}  PyTorch {losses[-1]:.5f}  Lazuli {ours:.5f}  {ours / losses[-1] - 1:+.2e}", flush=True)

worst = max(abs(ours / theirs - 1) for ours, theirs in zip(lazuli, losses))
print(f"{len(losses)} steps: losses within {worst:.1e}; the last is {losses[-1] / losses[0]:.3f} of the first, Lazuli's {lazuli[-1] / lazuli[0]:.3f}")
if kept:
    text = json.dumps({"tokens": tokens.tolist(), "losses": [round(x, 5) for x in losses]}, separators=(",", ":"))
    open(kept[0], "w").write(text + "\n")
sys.exit(worst > 0.01)
