"""What the `lazuli` command says of real models, against references: `cargo xtask models` runs it after `reference.py`.

    python commands.py LAZULI ROOT CASES
"""

import json
import os
import subprocess
import sys

import numpy as np
import onnxruntime
from PIL import Image

LAZULI, ROOT, CASES = sys.argv[1:4]
DATA = os.path.join(ROOT, "data")


def said(*words):
    return subprocess.run([LAZULI, *words], check=True, capture_output=True, text=True).stdout


def close(name, found, expect):
    far = np.max(np.abs(found - expect) / (1e-4 + 1e-3 * np.abs(expect)))
    print(f"{name}: at most {far:.3f} of what is allowed")
    assert far <= 1, name


def embed():
    """Vectors of a safetensors model against NumPy's in f64."""
    with open(os.path.join(CASES, "minilm-sentences.txt")) as file:
        sentences = file.read().splitlines()
    given = json.loads(said("embed", *sentences, "--model", os.path.join(DATA, "minilm"), "--json", "--device", "cpu"))
    found = np.array([text["vector"] for text in given["texts"]])
    close("lazuli embed", found, np.load(os.path.join(CASES, "minilm-vectors.npy")))


def transcribe():
    folder = os.path.join(DATA, "moonshine")
    text = said("transcribe", os.path.join(folder, "beckett.wav"), "--model", folder, "--device", "cpu").strip()
    print(f"lazuli transcribe: {text}")
    assert text == "Ever tried, ever failed, no matter try again, fail again, fail better.", text


def run():
    """A picture in the size that the model wants, so that only the layout and the colours are the command's."""
    picture = Image.open(os.path.join(DATA, "pictures/china.jpg")).convert("RGB").resize((320, 224))
    path = os.path.join(CASES, "china.png")
    picture.save(path)
    model = os.path.join(DATA, "rapidocr/PP-OCRv6_det_small.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    x = ((np.asarray(picture, np.float32) / 255 - 0.5) / 0.25).transpose(2, 0, 1)[None]
    expect = session.run(None, {"x": x})[0]
    given = json.loads(said("run", model, "--input", path, "--mean", "0.5", "--std", "0.25", "--json", "--device", "cpu"))
    output = given["outputs"][0]
    assert output["shape"] == list(expect.shape), output["shape"]
    close("lazuli run", np.array(output["data"]).reshape(expect.shape), expect)


embed()
transcribe()
run()
