// How fast llama.cpp reads and makes text, as `crates/lazuli-text/examples/pace.rs` measures Lazuli:
//
//     node llama_pace.mjs FILE.gguf [N_READ] [N_MADE] [THREADS] [CONTEXT]
//
// Needs npm's node-llama-cpp and @node-llama-cpp/linux-x64, version 3.22.1, in the working directory.

import path from "node:path";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

const [, , file, nRead = "257", nMade = "200", threads = "1", longest = "128"] = process.argv;
const median = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath: file});
const text = [...model.tokenize("The quick brown fox jumps over the lazy dog. ".repeat(Math.max(Number(nRead), Number(longest)) / 8 + 4), false)];
const newSequence = async () => {
    const context = await model.createContext({contextSize: Math.max(512, Number(longest)), batchSize: 512, threads: Number(threads)});
    return [context, context.getSequence()];
};
const next = {generateNext: {token: true, options: {temperature: 0}}};
const [context, sequence] = await newSequence();
await sequence.controlledEvaluate(text.slice(0, 16));
const times = [];
for (let i = 0; i < Number(nMade); i++) {
    if (sequence.nextTokenIndex === Number(longest)) {
        await sequence.eraseContextTokenRanges([{start: 16, end: Number(longest)}]);
    }
    const token = text[sequence.nextTokenIndex];
    const start = performance.now();
    await sequence.controlledEvaluate([[token, next]]);
    times.push(performance.now() - start);
}
await context.dispose();
times.splice(0, 8);
const best = Math.min(...times);
const made = median(times);
const reads = [];
for (let i = 0; i < 4; i++) {
    const [context, sequence] = await newSequence();
    const tokens = text.slice(0, Number(nRead));
    const start = performance.now();
    await sequence.controlledEvaluate(tokens.map((token, at) => at + 1 < tokens.length ? token : [token, next]));
    reads.push((performance.now() - start) / tokens.length);
    await context.dispose();
}
reads.shift();
console.log(`made ${made.toFixed(3)} ms a token (best ${best.toFixed(3)}), read ${median(reads).toFixed(3)} ms a token of ${nRead}`);
process.exit(0);
