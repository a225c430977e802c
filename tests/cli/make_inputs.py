# SPDX-License-Identifier: Apache-2.0
"""Writes the input files of the command's tests, good and bad, and the expected outputs, into a directory:
    make_inputs.py DIR"""
import math
import os
import struct
import sys

import tensors as t

os.chdir(sys.argv[1])

# Dense: batch 2, 5 queries, 7 keys, 4 heads on 2 (GQA), head_dim 6.
Q, K = (2, 5, 4, 6), (2, 7, 2, 6)
q, k, v = t.normal(Q, 1), t.normal(K, 2), t.normal(K, 3)
t.save_npy("q.npy", Q, q)
t.save_npy("k.npy", K, k)
t.save_npy("v.npy", K, v)
t.save_npy("out.npy", Q, t.attention(q, k, v, Q, K)[0], "<f8")
t.save_npy("lse.npy", (2, 4, 5), t.attention(q, k, v, Q, K)[1], "<f8")
t.save_npy("lse_wrong.npy", (2, 4, 5), [x + 0.01 for x in t.attention(q, k, v, Q, K)[1]], "<f8")
t.save_npy("out_causal.npy", Q, t.attention(q, k, v, Q, K, causal=True)[0], "<f8")
t.save_npy("out_scaled.npy", Q, t.attention(q, k, v, Q, K, scale=0.25)[0], "<f8")
bias = t.normal((5, 7), 4)
t.save_npy("bias.npy", (5, 7), bias)
t.save_npy("out_bias.npy", Q, t.attention(q, k, v, Q, K, bias=[bias[7 * i:7 * i + 7] for i in range(5)])[0], "<f8")

# The same in float16; and float64 and int32, which the kernels refuse.
for name, values, shape in (("q", q, Q), ("k", k, K), ("v", v, K)):
    t.save_npy(name + "_f16.npy", shape, values, "<f2")
    t.save_npy(name + "_f64.npy", shape, values, "<f8")
t.save_npy("k5.npy", (2, 7, 2, 5), [0.5] * 140)
t.save_npy("q_i32.npy", Q, [0] * t.size(Q), "<i4")


def transpose(values, shape):
    """[batch, seqlen, heads, head_dim] to [batch, heads, seqlen, head_dim]."""
    b, s, h, d = shape
    return [values[((n * s + i) * h + j) * d + x] for n in range(b) for j in range(h) for i in range(s) for x in
            range(d)]


for name, values, (b, s, h, d) in (("q", q, Q), ("k", k, K), ("v", v, K)):
    t.save_npy(name + "_bhsd.npy", (b, h, s, d), transpose(values, (b, s, h, d)))
t.save_npy("out_bhsd.npy", (2, 4, 5, 6), transpose(t.attention(q, k, v, Q, K)[0], Q), "<f8")

# One batch entry, [seqlen, heads, head_dim], and one head, [seqlen, head_dim].
t.save_npy("q3.npy", Q[1:], q[:t.size(Q[1:])])
t.save_npy("k3.npy", K[1:], k[:t.size(K[1:])])
t.save_npy("v3.npy", K[1:], v[:t.size(K[1:])])
t.save_npy("q2.npy", (5, 6), q[:30])
t.save_npy("k2.npy", (7, 6), k[:42])
t.save_npy("v2.npy", (7, 6), v[:42])
t.save_npy("out2.npy", (5, 6), t.attention(q[:30], k[:42], v[:42], (1, 5, 1, 6), (1, 7, 1, 6))[0], "<f8")

# The same as one packed sequence each for q and k; int64, as NumPy's integers are.
t.save_npy("q_packed.npy", (10, 4, 6), q)
t.save_npy("k_packed.npy", (14, 2, 6), k)
t.save_npy("v_packed.npy", (14, 2, 6), v)
t.save_npy("cu_q.npy", (3,), [0, 5, 10], "<i8")
t.save_npy("cu_k.npy", (3,), [0, 7, 14], "<i8")
t.save_npy("cu_too_large.npy", (3,), [0, 5, 1 << 40], "<i8")

# The same in pages of 2 keys: key j of sequence n in page (8 n + j // 2) of 16, in reversed order of pages.
def pages(values):
    result = [float("nan")] * (16 * 2 * 2 * 6)
    for n in range(2):
        for j in range(7):
            row = (15 - (8 * n + j // 2)) * 2 + j % 2
            result[row * 12:row * 12 + 12] = values[(n * 7 + j) * 12:(n * 7 + j) * 12 + 12]
    return result


t.save_safetensors("paged.safetensors", {
    "q": ("F32", Q, q), "k": ("F32", (16, 2, 2, 6), pages(k)), "v": ("F32", (16, 2, 2, 6), pages(v)),
    "table": ("I32", (2, 4), [15 - (8 * n + i) for n in range(2) for i in range(4)]), "used": ("I32", (2,), [7, 7])})

# Masks: keys 0 and 1 hidden, by a boolean mask, by a bias and by left padding.
t.save_npy("mask.npy", (1, 7), [False] * 2 + [True] * 5, "|b1")
t.save_npy("bias_hides.npy", (1, 7), [-math.inf] * 2 + [0.0] * 5)
t.save_npy("leftpad.npy", (2,), [2, 2], "<i4")
t.save_npy("used4.npy", (2,), [4, 4], "<i4")
t.save_npy("used7.npy", (2,), [7, 7], "<i4")
t.save_npy("used0.npy", (2,), [0, 0], "<i4")
t.save_npy("k4.npy", (2, 4, 2, 6), [x for n in range(2) for x in k[n * 84:n * 84 + 48]])
t.save_npy("v4.npy", (2, 4, 2, 6), [x for n in range(2) for x in v[n * 84:n * 84 + 48]])
t.save_npy("slopes0.npy", (4,), [0.0] * 4)
t.save_npy("sink_none.npy", (4,), [-math.inf] * 4)

# Tensors by name.
layer = {"q": ("F32", Q, q), "k": ("F32", K, k), "v": ("F32", K, v), "bias": ("F32", (5, 7), bias),
         "expected": ("F64", Q, t.attention(q, k, v, Q, K)[0]),
         "wrong": ("F64", Q, [x + 0.01 for x in t.attention(q, k, v, Q, K)[0]]),
         "nan": ("F64", Q, t.attention(q, k, v, Q, K)[0][:-1] + [math.nan]),
         "short": ("F64", (2, 5, 4, 5), [0.0] * 200)}
t.save_safetensors("layer.safetensors", layer)
t.save_safetensors("named.safetensors", {"h0.q": layer["q"], "h0.k": layer["k"], "h0.v": layer["v"]})

# For pictures: a causal head whose first row must look at key 0 alone, and one too long for a cell per weight.
t.save_npy("q_head.npy", (4, 6), t.normal((4, 6), 5))
t.save_npy("k_head.npy", (4, 6), t.normal((4, 6), 6))
t.save_npy("k_nan.npy", (3, 6), t.normal((6,), 9) + [math.nan] * 6 + t.normal((6,), 9))
t.save_npy("long.npy", (1100, 2), t.normal((1100, 2), 7))
t.save_npy("too_long.npy", (4097, 1), [0.0] * 4097)
t.save_npy("q_two.npy", (2, 6), t.normal((2, 6), 10))
open("tokens.txt", "wb").write("The\nquick\nbr\u00f6wn\nfox <&>\n".encode())
open("tokens_bad.txt", "wb").write(b"a\xff\xfe\n\x01\x02\n" + b"\xe2\x82" + b"\n" + b"x" * 3000 + b"\n")
open("tokens_short.txt", "wb").write(b"one\ntwo\n")

# A larger one, for a write that fails half way.
t.save_npy("large.npy", (1000, 6), t.normal((1000, 6), 8))

# Corrupt, truncated and hostile files.
good = open("q.npy", "rb").read()
named = open("layer.safetensors", "rb").read()
hostile = {
    "empty.npy": b"",
    "magic_only.npy": good[:6],
    "truncated.npy": good[:-1],
    "longer.npy": good + b"x",
    "header_cut.npy": good[:30],
    "header_huge.npy": good[:8] + b"\xff\xff" + good[10:],
    "shape_negative.npy": good.replace(b"(2,5,4,6,)", b"(2,5,4,-6)"),
    "shape_overflow.npy": good.replace(b"(2,5,4,6,), }   ", b"(99999999999,99999999999,), }"),
    "text.npy": b"this is no tensor\n",
    "truncated.safetensors": named[:-1],
    "header_huge.safetensors": struct.pack("<Q", 1 << 62) + named[8:],
    "json_broken.safetensors": named[:20] + b"\x00" + named[21:],
    "offsets.safetensors": named.replace(b'"data_offsets": [0', b'"data_offsets": [9', 1),
    "deep.safetensors": struct.pack("<Q", 100000) + b"[" * 100000,
}
for name, data in hostile.items():
    open(name, "wb").write(data)
os.mkdir("directory.npy")
t.save_npy("five.npy", (1, 1, 1, 1, 2), [0.0] * 2)
t.save_npy("one.npy", (3,), [0.0] * 3)
