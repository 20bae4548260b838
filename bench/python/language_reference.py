"""A language model in NumPy: the f32 forward pass of a GGUF file's widened weights, one product after another, for comparison with
Lazuli's. Knows the llama architecture. Needs PyPI's gguf and NumPy.

    python3 language_reference.py MODEL.gguf logits TOKENS.json OUT.npy        logits after each token
    python3 language_reference.py MODEL.gguf greedy PROMPTS.json OUT.json N    the N likeliest tokens after each prompt, and by how
                                                                               much the best was better than the second
    python3 language_reference.py MODEL.gguf keep TOKENS.json OUT.json         of the logits after each token: the largest size, the
                                                                               eight best, and every 2,048th
"""

import json
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Model:
    def __init__(self, path):
        file = GGUFReader(path)
        arch = file.fields["general.architecture"].contents()
        assert arch == "llama", f"{arch} is not known here"
        number = lambda key: file.fields[f"{arch}.{key}"].contents()
        self.n_layers, self.n_heads = number("block_count"), number("attention.head_count")
        self.n_kv, self.eps = number("attention.head_count_kv"), number("attention.layer_norm_rms_epsilon")
        self.base = number("rope.freq_base")
        widened = lambda t: np.ascontiguousarray(dequantize(t.data, t.tensor_type), dtype=np.float32)
        self.w = {t.name: widened(t).reshape(tuple(reversed(t.shape.tolist()))) for t in file.tensors}
        self.w.setdefault("output.weight", self.w["token_embd.weight"])
        self.dim = self.w["blk.0.attn_q.weight"].shape[0] // self.n_heads
        self.cache = [None] * self.n_layers

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.eps)) * self.w[name]

    def turn(self, x, start):
        """Neighbours are a pair: llama's GGUF files have their rows so."""
        rates = self.base ** (-2.0 * np.arange(self.dim // 2) / self.dim)
        angles = np.outer(np.arange(start, start + x.shape[0]), rates)
        cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)

    def read(self, tokens):
        """Logits after each token; the cache goes on."""
        x = self.w["token_embd.weight"][tokens]
        n = len(tokens)
        for i in range(self.n_layers):
            w = lambda part: self.w[f"blk.{i}.{part}.weight"]
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            start = 0 if self.cache[i] is None else self.cache[i][0].shape[0]
            q = self.turn((h @ w("attn_q").T).reshape(n, self.n_heads, self.dim), start)
            k = self.turn((h @ w("attn_k").T).reshape(n, self.n_kv, self.dim), start)
            v = (h @ w("attn_v").T).reshape(n, self.n_kv, self.dim)
            if start:
                k, v = np.concatenate([self.cache[i][0], k]), np.concatenate([self.cache[i][1], v])
            self.cache[i] = (k, v)
            group = self.n_heads // self.n_kv
            scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, 1)) / np.float32(np.sqrt(self.dim))
            seen = np.arange(start + n)[None] <= np.arange(start, start + n)[:, None]
            scores = np.where(seen[None], scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            found = np.einsum("hqk,khd->qhd", p, np.repeat(v, group, 1)).reshape(n, -1)
            x = x + found @ w("attn_output").T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, "output_norm.weight") @ self.w["output.weight"].T


path, what, source, out, *rest = sys.argv[1:]
model = Model(path)
if what == "logits":
    np.save(out, model.read(json.load(open(source))).astype(np.float32))
elif what == "keep":
    tokens = json.load(open(source))
    rows = []
    for logits in model.read(tokens):
        ids = sorted({*np.argsort(logits)[-8:].tolist(), *range(0, len(logits), 2048)})
        rows.append({"largest": float(np.abs(logits).max()), "ids": ids, "logits": [round(float(logits[i]), 5) for i in ids]})
    json.dump({"tokens": tokens, "rows": rows}, open(out, "w"))
else:
    results = []
    for prompt in json.load(open(source)):
        model.cache = [None] * model.n_layers
        made, gaps, tokens = [], [], prompt
        for _ in range(int(rest[0])):
            logits = model.read(tokens)[-1]
            second, best = np.argpartition(logits, -2)[-2:][np.argsort(logits[np.argpartition(logits, -2)[-2:]])]
            made.append(int(best))
            gaps.append(float(logits[best] - logits[second]))
            tokens = [int(best)]
        results.append({"made": made, "gaps": gaps})
    json.dump(results, open(out, "w"))
