# SPDX-License-Identifier: Apache-2.0
"""Tensor files and attention in plain Python, for the tests of the command: nothing but the standard library, so
that nothing here can share a mistake with the library under test."""
import json
import math
import random
import struct

FORMATS = {"<f4": ("f", 4), "<f8": ("d", 8), "<i4": ("i", 4), "<i8": ("q", 8), "|b1": ("?", 1), "<f2": ("e", 2)}
SAFETENSORS = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "BOOL": "|b1", "F16": "<f2"}


def size(shape):
    return math.prod(shape)


def save_npy(path, shape, values, descr="<f4"):
    code = FORMATS[descr][0]
    header = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (descr, "".join("%d," % n for n in shape))
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack("<%d%s" % (size(shape), code), *values))


def load_npy(path):
    """Returns (shape, values)."""
    data = open(path, "rb").read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10:10 + length], {"__builtins__": {}}, {"False": False, "True": True})
    assert not header["fortran_order"]
    code, width = FORMATS[header["descr"]]
    count = size(header["shape"])
    assert len(data) == 10 + length + count * width
    return header["shape"], list(struct.unpack("<%d%s" % (count, code), data[10 + length:]))


def save_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, values)} with dtype "F32", ..."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        code = FORMATS[SAFETENSORS[dtype]][0]
        packed = struct.pack("<%d%s" % (size(shape), code), *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def load_safetensors(path):
    """Returns ({name: (dtype, shape, values)}, metadata)."""
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        code = FORMATS[SAFETENSORS[entry["dtype"]]][0]
        values = struct.unpack("<%d%s" % (size(entry["shape"]), code), data[8 + length + begin:8 + length + end])
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), list(values))
    return tensors, metadata


def normal(shape, seed):
    """Standard normal numbers that float32 holds exactly."""
    generator = random.Random(seed)
    values = [generator.gauss(0, 1) for _ in range(size(shape))]
    return list(struct.unpack("<%df" % len(values), struct.pack("<%df" % len(values), *values)))


def attention(q, k, v, shape_q, shape_k, causal=False, scale=None, bias=None):
    """[batch, seqlen, heads, head_dim]; returns out and lse [batch, heads, seqlen_q]. bias: [seqlen_q][seqlen_k]."""
    batch, rows, heads, dim = shape_q
    keys, heads_kv = shape_k[1], shape_k[2]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    out, lse = [0.0] * size(shape_q), [-math.inf] * (batch * heads * rows)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // heads_kv)
            for i in range(rows):
                at = ((b * rows + i) * heads + h) * dim
                seen = range(min(keys, i + keys - rows + 1)) if causal else range(keys)
                scores = []
                for j in seen:
                    start = ((b * keys + j) * heads_kv + g) * dim
                    scores.append(scale * sum(q[at + x] * k[start + x] for x in range(dim)))
                    if bias is not None:
                        scores[-1] += bias[i][j]
                if not scores:
                    continue
                top = max(scores)
                weights = [math.exp(s - top) for s in scores]
                total = sum(weights)
                lse[(b * heads + h) * rows + i] = top + math.log(total)
                for j, w in zip(seen, weights):
                    start = ((b * keys + j) * heads_kv + g) * dim
                    for x in range(dim):
                        out[at + x] += w / total * v[start + x]
    return out, lse


def close(a, b, tolerance):
    """Equal length and every difference within tolerance; a NaN is within none."""
    return len(a) == len(b) and all(x == y or abs(x - y) <= tolerance for x, y in zip(a, b))
