// Training steps of tfjs and jax-js on WebGPU under Node for `src/bin/train.rs`, which starts this and takes turns with it.
//
//     npm install webgpu @tensorflow/tfjs @tensorflow/tfjs-backend-webgpu @jax-js/jax      # in the folder it is started from
//     cargo run --release --bin train --features gpu -- --device software --only mlp --peers "node js/train_peers.mjs"
//
// First line out: the peers that run. Then for each line in, `peer net n_steps`, one line out: wall and CPU milliseconds of
// the steps and the last loss. Net, first weights and batch are those of `src/train/mod.rs`; there is only the MLP.
// Recent Dawn refuses Mesa 22.3's lavapipe; `features.c` says how to get past that.

import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";

const require = createRequire(path.join(process.cwd(), "package.json"));
const [BATCH, PIXELS, HIDDEN, CLASSES, LR, EPS] = [64, 784, 256, 10, 1e-3, 1e-8];

/** The same numbers as `inputs.rs`. */
function values(seed, n, bound = 1) {
  const out = new Float32Array(n);
  const first = Math.imul(seed, 0x9e3779b9);
  for (let i = 0; i < n; i++) {
    let x = (first + i) >>> 0;
    x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
    x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
    x = (x ^ (x >>> 16)) >>> 0;
    out[i] = ((x >>> 8) / (1 << 23) - 1) * bound;
  }
  return out;
}

/** `[shape, values]` of weights and biases, layer by layer. */
function weights() {
  const sizes = [[HIDDEN, PIXELS], [CLASSES, HIDDEN]];
  return sizes.flatMap(([rows, cols], i) => {
    const bound = Math.fround(1 / Math.sqrt(cols));
    return [[[rows, cols], values(2 * i + 1, rows * cols, bound)], [[rows], values(2 * i + 2, rows, bound)]];
  });
}

const images = values(0, BATCH * PIXELS);
const labels = Array.from({ length: BATCH }, (_, i) => (i * 7) % CLASSES);

async function tfjsStep() {
  const tf = require("@tensorflow/tfjs");
  require("@tensorflow/tfjs-backend-webgpu");
  if (!(await tf.setBackend("webgpu"))) throw new Error("tfjs has no WebGPU here");
  const [w1, b1, w2, b2] = weights().map(([shape, data]) => tf.variable(tf.tensor(data, shape)));
  const x = tf.tensor2d(images, [BATCH, PIXELS]);
  const hot = tf.oneHot(tf.tensor1d(labels, "int32"), CLASSES).toFloat();
  const optimizer = tf.train.adam(LR, 0.9, 0.999, EPS);
  const loss = () => {
    const hidden = tf.matMul(x, w1, false, true).add(b1).relu();
    return tf.losses.softmaxCrossEntropy(hot, tf.matMul(hidden, w2, false, true).add(b2));
  };
  const queue = tf.backend().queue;
  return async () => {
    const value = optimizer.minimize(loss, true);
    const [number] = await value.data();
    value.dispose();
    await queue.onSubmittedWorkDone();
    return number;
  };
}

async function jaxStep() {
  const { defaultDevice, init, jit, nn, numpy: np, valueAndGrad, blockUntilReady } = await import(
    path.join(process.cwd(), "node_modules/@jax-js/jax/dist/index.js")
  );
  if (!(await init("webgpu")).includes("webgpu")) throw new Error("jax-js has no WebGPU here");
  defaultDevice("webgpu");
  const array = ([shape, data]) => np.array(data).reshape(shape);
  const lossOf = ([w1, b1, w2, b2], x, hot) => {
    const hidden = nn.relu(np.matmul(x, w1.transpose()).add(b1));
    const logits = np.matmul(hidden, w2.transpose()).add(b2);
    return nn.logSoftmax(logits, -1).mul(hot).sum().mul(-1 / BATCH);
  };
  const adam = jit((params, ms, vs, c1, c2, x, hot) => {
    const [loss, grads] = valueAndGrad(lossOf)(params.map((w) => w.ref), x, hot);
    const next = params.map((w, i) => {
      const m = ms[i].mul(0.9).add(grads[i].ref.mul(0.1));
      const v = vs[i].mul(0.999).add(np.square(grads[i]).mul(0.001));
      const step = m.ref.mul(c1.ref).div(np.sqrt(v.ref.mul(c2.ref)).add(EPS));
      return [w.sub(step.mul(LR)), m, v];
    });
    c1.dispose();
    c2.dispose();
    return [loss, ...[0, 1, 2].map((part) => next.map((parts) => parts[part]))];
  });
  let params = weights().map(array);
  let [ms, vs] = [0, 1].map(() => weights().map(([shape]) => np.zeros(shape)));
  const x = np.array(images).reshape([BATCH, PIXELS]);
  const hot = nn.oneHot(np.array(labels, { dtype: np.int32 }), CLASSES);
  let t = 0;
  return async () => {
    t += 1;
    const [c1, c2] = [1 / (1 - 0.9 ** t), 1 / (1 - 0.999 ** t)].map((c) => np.array(c));
    let loss;
    [loss, params, ms, vs] = adam(params, ms, vs, c1, c2, x.ref, hot.ref);
    await blockUntilReady([params, ms, vs]);
    return (await loss.data())[0];
  };
}

const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);
Object.defineProperty(globalThis, "navigator", { value: { gpu: create([]), userAgent: "node" }, configurable: true });

const steps = {};
for (const [name, make] of [["tfjs-webgpu", tfjsStep], ["jax-js-webgpu", jaxStep]]) {
  try {
    steps[name] = await make();
  } catch (error) {
    console.error(`${name}: left out: ${error.message}`);
  }
}
console.log(Object.keys(steps).join(" "));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [peer, net, nSteps] = line.split(" ");
  if (net !== "mlp") {
    console.log(`${peer} has no ${net}`);
    continue;
  }
  const [wall, cpu] = [performance.now(), process.cpuUsage()];
  let loss;
  for (let i = 0; i < Number(nSteps); i++) loss = await steps[peer]();
  const { user, system } = process.cpuUsage(cpu);
  console.log(`${performance.now() - wall} ${(user + system) / 1e3} ${loss}`);
}
process.exit(0);
