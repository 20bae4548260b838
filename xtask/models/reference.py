"""What onnxruntime (CPU) makes of real models, as cases for `examples/models.rs` of lazuli-onnx. `cargo xtask models` runs it.

A case is a folder with `case.txt`, a line each:

    model PATH              the model, from the root of the repository or from the folder
    input NAME FILE         an npy file
    output NAME FILE        what onnxruntime gave
    decide NAME RULE        which decision must be the same: `argmax`, or `above LIMIT`
    exact                   integers and bytes must be equal bit by bit
    loose                   dynamically quantised: how far outputs differ is printed; decisions count

Inputs are photographs of scikit-learn, a recording, text and chords that are drawn here.
"""

import os
import shutil
import sys
import wave

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer

ROOT, OUT = sys.argv[1:3]
DATA = os.path.join(ROOT, "data")
# What `cargo xtask test` compares with, where there is no onnxruntime.
KEPT = os.path.join(ROOT, "xtask/models")


def session(path_or_bytes, **settings):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for name, value in settings.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(path_or_bytes, options, providers=["CPUExecutionProvider"])


def case(name, model, inputs, decide=(), flags=(), outputs=None):
    """Writes a case; gives the outputs by name."""
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    if outputs is None:
        run = session(os.path.join(ROOT, model))
        outputs = dict(zip([output.name for output in run.get_outputs()], run.run(None, inputs)))
    lines = [f"model {model}"]
    for kind, values in (("input", inputs), ("output", outputs)):
        for i, (key, value) in enumerate(values.items()):
            np.save(os.path.join(folder, f"{kind}_{i}.npy"), np.asarray(value, order="C"))
            lines.append(f"{kind} {key} {kind}_{i}.npy")
    lines += [f"decide {rule}" for rule in decide]
    lines += list(flags)
    with open(os.path.join(folder, "case.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")
    return outputs


def keep(name, lines):
    with open(os.path.join(KEPT, name), "w") as file:
        file.write("".join(f"{line}\n" for line in lines))


def recording():
    """The recording as floats, 16,000 a second."""
    with wave.open(os.path.join(DATA, "moonshine/beckett.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def picture(name):
    return Image.open(os.path.join(DATA, "pictures", name)).convert("RGB")


def drawn(text, size, height):
    """Black text on white."""
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((8, height // 4), text, fill="black", font=ImageFont.load_default(height // 2))
    return image


def centred(image):
    """Planes of BGR in [-1, 1], as PP-OCR takes them."""
    x = (np.asarray(image, np.float32)[:, :, ::-1] / 255 - 0.5) / 0.5
    return x.transpose(2, 0, 1)[None]


def magika():
    """The first and last 1024 bytes of files of known kinds, stripped and padded."""
    files = {
        "jpeg": "data/pictures/china.jpg",
        "wav": "data/moonshine/beckett.wav",
        "json": "data/minilm/tokenizer.json",
        "rust": "crates/lazuli-onnx/src/machine.rs",
        "markdown": "README.md",
        "toml": "Cargo.toml",
    }
    rows = []
    for path in files.values():
        with open(os.path.join(ROOT, path), "rb") as file:
            content = file.read()
        begin, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        row = list(begin) + [256] * (1024 - len(begin)) + [256] * (1024 - len(end)) + list(end)
        rows.append(row)
    given = case("magika", "data/magika/model.onnx", {"bytes": np.array(rows, np.int32)}, ["target_label argmax"])
    import json

    with open(os.path.join(DATA, "magika/config.min.json")) as file:
        labels = json.load(file)["target_labels_space"]
    heard = [labels[i] for i in given["target_label"].argmax(-1)]
    assert heard == list(files), heard


def silero():
    """Every file of the package on one chunk in the middle of the recording, with the state that chunks before it left."""
    sound = recording()
    chunks = [sound[at : at + 512] for at in range(0, len(sound) - 511, 512)]
    with_context = [np.concatenate([(chunks[i - 1] if i else np.zeros(512, np.float32))[-64:], c]) for i, c in enumerate(chunks)]
    whole = np.stack(with_context)
    start = {"h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}
    case("silero-sequence", "data/silero/silero_vad_16k_sequence.onnx", {"input": whole, **start}, ["speech_probs above 0.5"])
    # Chunk after chunk, the state handed on: what a program that listens does.
    run, state, chances = session(os.path.join(DATA, "silero/silero_vad.onnx")), np.zeros((2, 1, 128), np.float32), []
    rate = np.array(16000, np.int64)
    middle = None
    for i, chunk in enumerate(with_context):
        if i == len(with_context) // 2:
            middle = (chunk[None], state)
        chance, state = run.run(None, {"input": chunk[None], "state": state, "sr": rate})
        chances.append(chance[0, 0])
    keep("silero-chances.txt", [f"{chance:.7g}" for chance in chances])
    chunk, state = middle
    for stem, more in (
        ("silero_vad", {"sr": rate}),
        ("silero_vad_16k_op15", {"sr": rate}),
        ("silero_vad_half", {}),
        ("silero_vad_op18_ifless", {"sr": rate}),
        ("silero_vad_openvino_16k", {}),
    ):
        inputs = {"input": chunk, "state": state, **more}
        case(f"silero-{stem[7:]}", f"data/silero/{stem}.onnx", inputs, ["output above 0.5"])
    slow = {"input": chunk[:, : 256 + 32], "state": state, "sr": np.array(8000, np.int64)}
    case("silero-8k", "data/silero/silero_vad.onnx", slow, ["output above 0.5"])


def rapidocr():
    for name, image in (
        ("china", picture("china.jpg").resize((640, 416))),
        ("text", drawn("Nothing runs until a number is wanted", (640, 192), 96)),
    ):
        path = "data/rapidocr/PP-OCRv6_det_small.onnx"
        case(f"ocr-detect-{name}", path, {"x": centred(image)}, ["fetch_name_0 above 0.3"])
    path = "data/rapidocr/PP-OCRv6_rec_small.onnx"
    table = onnx.load(os.path.join(ROOT, path)).metadata_props
    letters = [""] + next(p.value for p in table if p.key == "character").splitlines() + [" "]
    for name, text, width in (("short", "Lazuli 2026", 320), ("long", "Everything is planned before it runs", 640)):
        logits = case(f"ocr-read-{name}", path, {"x": centred(drawn(text, (width, 48), 48))}, ["fetch_name_0 argmax"])
        best = logits["fetch_name_0"][0].argmax(-1)
        read = "".join(letters[k] for i, k in enumerate(best) if k and (i == 0 or k != best[i - 1]))
        print(f"ocr-read-{name}: {read!r}")
        assert read.replace(" ", "") == text.replace(" ", ""), read
    path = "data/rapidocr/ch_ppocr_mobile_v2.0_cls_mobile.onnx"
    line = drawn("Lazuli 2026", (192, 48), 48)
    both = np.concatenate([centred(line), centred(line.rotate(180))])
    name = session(os.path.join(ROOT, path)).get_outputs()[0].name
    given = case("ocr-turned", path, {"x": both}, [f"{name} argmax"])
    assert list(given[name].argmax(-1)) == [0, 1], given


def basic_pitch():
    # Without some noise onnxruntime differs from itself, optimised and not, by twice what is allowed: bands that hold nothing
    # are logarithms of rounding errors.
    noise = np.random.default_rng(1).standard_normal(43844) * 1e-3
    at = np.arange(43844) / 22050
    chord = sum(np.sin(2 * np.pi * hertz * at) * np.exp(-3 * ((at * 2) % 1)) for hertz in (261.63, 329.63, 392.0)) / 4
    for name, sound in (("chord", chord + noise), ("speech", recording()[16000 : 16000 + 43844])):
        inputs = {"serving_default_input_2:0": sound.astype(np.float32)[None, :, None]}
        rules = [f"StatefulPartitionedCall:{i} above {limit}" for i, limit in ((1, 0.3), (2, 0.5), (0, 0.5))]
        case(f"pitch-{name}", "data/basic-pitch/nmp.onnx", inputs, rules)


def open_nsfw():
    for name in ("china", "flower"):
        image = picture(f"{name}.jpg").resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
        x = np.asarray(image, np.float32)[:, :, ::-1] - np.array([104, 117, 123], np.float32)
        model = "data/open-nsfw/open-nsfw.onnx"
        output = session(os.path.join(ROOT, model)).get_outputs()[0].name
        case(f"nsfw-{name}", model, {"input:0": x[None]}, [f"{output} argmax"])


SPOKEN = "Ever tried, ever failed, no matter try again, fail again, fail better."


def moonshine():
    """Encoder, decoder and the loop around them; the tokens are what counts."""
    sound = recording()[None]
    encoder = "data/moonshine/encoder_model.onnx"
    states = case("moonshine-encoder", encoder, {"input_values": sound}, flags=["loose"])["last_hidden_state"]
    path = "data/moonshine/decoder_model_merged.onnx"
    run = session(os.path.join(ROOT, path))
    names = [output.name for output in run.get_outputs()]
    past = {i.name: np.zeros((1, 8, 0, 36), np.float32) for i in run.get_inputs() if i.name.startswith("past")}
    tokens = [1]
    while tokens[-1] != 2 and len(tokens) < 194:
        cached = len(tokens) > 1
        inputs = {
            "input_ids": np.array([tokens[-1:]], np.int64),
            "encoder_hidden_states": states,
            "use_cache_branch": np.array([cached]),
            **past,
        }
        given = dict(zip(names, run.run(None, inputs)))
        if len(tokens) in (1, 2, 9):
            case(f"moonshine-decoder-{len(tokens)}", path, inputs, ["logits argmax"], ["loose"], given)
        tokens.append(int(given["logits"][0, -1].argmax()))
        for name in past:
            if not cached or ".decoder." in name:
                past[name] = given[name.replace("past_key_values", "present")]
    heard = Tokenizer.from_file(os.path.join(DATA, "moonshine/tokenizer.json")).decode(tokens)
    assert heard.strip() == SPOKEN, heard
    keep("moonshine-tokens.txt", tokens)
    return sound, states, past, tokens


QUANTISED = {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DequantizeLinear", "QuantizeLinear"}


def quantised(name, model, inputs):
    """A case per kind of shapes of every quantised operator: its inputs and outputs as onnxruntime had them, unfused."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in QUANTISED]
    wanted = {name for node in nodes for name in [*node.input, *node.output] if name and name not in known}
    made = {output for node in model.graph.node for output in node.output}
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(wanted & made))
    off = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = session(model.SerializeToString(), graph_optimization_level=off)
    outputs = [output.name for output in run.get_outputs()]
    values = dict(zip(outputs, run.run(None, {i.name: inputs[i.name] for i in run.get_inputs()})))
    values.update(inputs)
    met = set()
    for node in nodes:
        names = [name for name in [*node.input, *node.output] if name]
        shapes = [tuple(values[n].shape) if n in values else tuple(known[n].dims) for n in names]
        if (node.op_type, str(shapes)) in met:
            continue
        met.add((node.op_type, str(shapes)))
        folder = os.path.join(OUT, f"quantised-{name}-{len(met)}-{node.op_type}")
        os.makedirs(folder)
        typed = lambda n: onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
        given = [n for n in dict.fromkeys(node.input) if n in values]
        graph = onnx.helper.make_graph(
            [node], "one", [typed(n) for n in given], [typed(n) for n in node.output if n],
            [known[n] for n in dict.fromkeys(node.input) if n in known],
        )
        one = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        onnx.save(one, os.path.join(folder, "model.onnx"))
        case(
            os.path.basename(folder), "model.onnx", {n: values[n] for n in given}, flags=["exact"],
            outputs={n: values[n] for n in node.output if n},
        )


def branch(model, name):
    """The graph with its `If` replaced by one of its branches."""
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "If")
    body = next(a.g for a in model.graph.node[at].attribute if a.name == name)
    del model.graph.node[at]
    model.graph.node.extend(body.node)
    model.graph.initializer.extend(body.initializer)
    return model


def quantised_parts(sound, states, past):
    quantised("encoder", onnx.load(os.path.join(DATA, "moonshine/encoder_model.onnx")), {"input_values": sound})
    inputs = {"input_ids": np.array([[1]], np.int64), "encoder_hidden_states": states, **past}
    path = os.path.join(DATA, "moonshine/decoder_model_merged.onnx")
    for name in ("then_branch", "else_branch"):
        more = {"use_cache_branch": np.array([name == "then_branch"])}
        quantised(f"decoder-{name[:4]}", branch(onnx.load(path), name), {**inputs, **more})


def minilm():
    """all-MiniLM-L6-v2 in NumPy, in f64, from the same files."""
    folder = os.path.join(DATA, "minilm")
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        import json

        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        body = file.read()
    header.pop("__metadata__", None)
    kinds = {"F32": np.float32, "I64": np.int64}
    w = {
        name: np.frombuffer(body[at["data_offsets"][0] : at["data_offsets"][1]], kinds[at["dtype"]]).reshape(at["shape"]).astype(np.float64)
        for name, at in header.items()
        if at["dtype"] == "F32"
    }
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_padding()

    def norm(x, at):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * w[at + ".weight"] + w[at + ".bias"]

    def linear(x, at):
        return x @ w[at + ".weight"].T + w[at + ".bias"]

    from math import erf

    vectors, ids = [], []
    for text in SENTENCES:
        tokens = tokenizer.encode(text).ids
        ids.append(tokens)
        x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(x + w["embeddings.position_embeddings.weight"][: len(tokens)], "embeddings.LayerNorm")
        for layer in range(6):
            at = f"encoder.layer.{layer}."
            q, k, v = (linear(x, f"{at}attention.self.{part}").reshape(-1, 12, 32).swapaxes(0, 1) for part in ("query", "key", "value"))
            scores = q @ k.swapaxes(1, 2) / np.sqrt(32)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(-1, 384)
            x = norm(x + linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
            inner = linear(x, at + "intermediate.dense")
            inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
            x = norm(x + linear(inner, at + "output.dense"), at + "output.LayerNorm")
        mean = x.mean(0)
        vectors.append(mean / np.sqrt((mean * mean).sum()))
    np.save(os.path.join(OUT, "minilm-vectors.npy"), np.array(vectors, np.float32))
    with open(os.path.join(OUT, "minilm-tokens.txt"), "w") as file:
        file.write("".join(" ".join(map(str, tokens)) + "\n" for tokens in ids))
    with open(os.path.join(OUT, "minilm-sentences.txt"), "w") as file:
        file.write("".join(text + "\n" for text in SENTENCES))


SENTENCES = [
    "A man is eating food.",
    "Somebody is having a meal.",
    "The new planner fuses a softmax into one kernel.",
    "Straße, naïve café: Ünïcode & 12.5 % of punctuation!?",
    "東京 is the capital of Japan",
]


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    for part in (magika, silero, rapidocr, basic_pitch, open_nsfw, minilm):
        part()
        print(f"{part.__name__}: done", flush=True)
    sound, states, past, tokens = moonshine()
    print(f"moonshine: {len(tokens)} tokens", flush=True)
    quantised_parts(sound, states, past)


main()
