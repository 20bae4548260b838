"""Training steps of PyTorch (eager), JAX (jit) and tinygrad (jit) for `src/bin/train.rs`, which takes turns with this.

    python3 -m venv .venv
    .venv/bin/pip install numpy jax torch      # torch is large; leave it out to measure JAX alone
    cargo run --release --bin train -- --peers ".venv/bin/python python/train_peers.py"

tinygrad runs where its own variables say; on a GPU through WebGPU, with `dawn-python` installed beside it, that is
`DEV=WEBGPU WEBGPU_PATH=…/pydawn/lib/libwebgpu_dawn_x86_64.so`.

First line out: the peers that are installed. Then for each line in, `peer net n_steps`, one line out: wall and CPU
milliseconds of the steps and the last loss. Nets, first weights and batch are those of `src/train/mod.rs`.
"""

import argparse
import os
import sys
import time

parser = argparse.ArgumentParser(description="make training steps on request")
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_args()

# Before the libraries are imported: they read these once. Spinning would bill idle threads.
os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])

import numpy as np  # noqa: E402

BATCH, SIDE, CLASSES, LR, EPS = 64, 28, 10, 1e-3, 1e-8
# Shapes of the layers that have weights.
NETS = {
    "mlp": [(256, 784), (10, 256)],
    "cnn": [(16, 1, 3, 3), (32, 16, 3, 3), (128, 1568), (10, 128)],
}


def values(seed, shape):
    """The same numbers as `inputs.rs`."""
    x = np.arange(np.prod(shape), dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16))
    return ((x >> np.uint32(8)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape)


def weights(net):
    out = []
    for i, shape in enumerate(NETS[net]):
        bound = np.float32(1) / np.sqrt(np.float32(np.prod(shape[1:])))
        out.append((values(2 * i + 1, shape) * bound, values(2 * i + 2, shape[:1]) * bound))
    return out


IMAGES = values(0, (BATCH, 1, SIDE, SIDE))
LABELS = np.arange(BATCH) * 7 % CLASSES


def torch_step(net):
    import torch
    from torch import nn

    torch.set_num_threads(options.threads)
    pool = lambda: [nn.ReLU(), nn.MaxPool2d(2)]  # noqa: E731
    linears = [nn.Linear(*reversed(shape)) for shape in NETS[net] if len(shape) == 2]
    convs = [nn.Conv2d(shape[1], shape[0], 3, padding=1) for shape in NETS[net] if len(shape) == 4]
    layers = [layer for conv in convs for layer in [conv, *pool()]]
    model = nn.Sequential(*layers, nn.Flatten(), linears[0], nn.ReLU(), linears[1])
    with torch.no_grad():
        for layer, (w, b) in zip(convs + linears, weights(net)):
            layer.weight.copy_(torch.from_numpy(w))
            layer.bias.copy_(torch.from_numpy(b))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, eps=EPS)
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(LABELS)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_step(net):
    import jax
    import jax.numpy as jnp

    def forward(params, x):
        for i, (w, b) in enumerate(params):
            if w.ndim == 4:
                x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME") + b[:, None, None]
                x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            else:
                x = x.reshape(x.shape[0], -1) @ w.T + b
                x = jax.nn.relu(x) if i + 1 < len(params) else x
        return x

    def loss_of(params, images, labels):
        log_p = jax.nn.log_softmax(forward(params, images))
        return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], 1))

    def adam(state, images, labels):
        params, m, v, t = state
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        params = jax.tree.map(lambda w, m, v: w - LR * (m / c1) / (jnp.sqrt(v / c2) + EPS), params, m, v)
        return (params, m, v, t), loss

    adam = jax.jit(adam, donate_argnums=0)
    params = [(jnp.asarray(w), jnp.asarray(b)) for w, b in weights(net)]
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
    state = (params, zeros(), zeros(), jnp.float32(0))
    images, labels = jnp.asarray(IMAGES), jnp.asarray(LABELS)

    def step():
        nonlocal state
        state, loss = adam(state, images, labels)
        jax.block_until_ready(state)
        return float(loss)

    return step


def tinygrad_step(net):
    from tinygrad import Tensor, TinyJit
    from tinygrad.helpers import Context
    from tinygrad.nn.optim import Adam

    params = [(Tensor(w), Tensor(b)) for w, b in weights(net)]
    optimizer = Adam([p.is_param_() for both in params for p in both], lr=LR, eps=EPS)
    images, labels = Tensor(IMAGES).realize(), Tensor(LABELS.astype(np.int32)).realize()

    def forward(x):
        for i, (w, b) in enumerate(params):
            if w.ndim == 4:
                x = x.conv2d(w, b, padding=1).relu().max_pool2d(2)
            else:
                x = x.flatten(1).linear(w.T, b)
                x = x.relu() if i + 1 < len(params) else x
        return x

    @TinyJit
    def train():
        optimizer.zero_grad()
        loss = forward(images).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    def step():
        with Context(TRAINING=1):
            return train().item()

    return step


def installed():
    peers = {}
    makers = [("torch-eager", "torch", torch_step), ("jax-jit", "jax", jax_step), ("tinygrad", "tinygrad", tinygrad_step)]
    for name, module, make in makers:
        try:
            __import__(module)
            peers[name] = make
        except ImportError:
            print(f"{name}: not installed, left out", file=sys.stderr)
    return peers


def main():
    peers, steps = installed(), {}
    print(*peers, flush=True)
    for line in sys.stdin:
        peer, net, n_steps = line.split()
        if (peer, net) not in steps:
            steps[peer, net] = peers[peer](net)
        step = steps[peer, net]
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(n_steps)):
            loss = step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(wall * 1e3, cpu * 1e3, loss, flush=True)


main()
