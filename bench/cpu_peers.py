#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward on the CPU against PyTorch, oneDNN, and llama.cpp's ggml where its Python package is to be had, in the same run.

    python3 bench/cpu_peers.py LIBRARY [--threads 1] [--rounds 7] [--cases prefill,decode,small] [--dtypes float32,bfloat16,float16]
                               [--plot FILE.png] [--venv DIR] [--with-ggml]
    python3 bench/cpu_peers.py LIBRARY --cases sweep [--threads 1] [--rounds 3] [--dtypes ...] [--venv DIR]

LIBRARY is libflashattn.so. The peers live in a virtual environment, DIR, which is made at the first run: PyPI's torch and
matplotlib (some GB on x86-64), onednn-devel-cpu-gomp (x86-64 only; needs a C compiler), with --with-ggml also ggml-python,
which is compiled. Results are compared first. Contenders take turns (A B C A B C ...), and the best of each counts. With
one thread it is the thread's CPU time, which other processes disturb least; with more it is the clock. Random normal data,
[batch, seqlen, heads, head_dim]. FLOPs: 2 (d + dv) for each pair of a query and a key that it may see.

flash: scaled_dot_product_attention with SDPBackend.FLASH_ATTENTION. math: the same with SDPBackend.MATH, plain attention.
oneDNN: onednn_attention.c, the fastest of a few compositions of oneDNN's matmuls and softmax.

sweep goes through a grid of small shapes against plain attention: math, softmax between two calls of torch.matmul, and in
float32 the same in NumPy. It prints the shapes where flashattn was slower, and still was in twice as many rounds.
"""
import argparse
import ctypes
import itertools
import os

from library import addresses, load, tensor
from peers import (add_options, best_peer, check, clock_of, enter_venv, load_onednn, measure, onednn_contender, plot,
                   table_head, table_row, timed)

# batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, causal
CASES = {
    "prefill": [(1, 16, 16, 1024, 1024, 64, 0), (1, 16, 16, 1024, 1024, 64, 1), (1, 16, 16, 2048, 2048, 128, 0),
                (1, 16, 16, 2048, 2048, 128, 1), (1, 8, 2, 4096, 4096, 128, 1)],
    "decode": [(1, 32, 8, 1, 8192, 128, 0), (8, 32, 8, 1, 4096, 128, 0)],
    "small": [(1, 1, 1, 1, 1, 64, 0), (1, 8, 8, 1, 64, 64, 0), (1, 8, 8, 4, 4, 64, 1), (1, 8, 8, 16, 16, 64, 0),
              (1, 12, 12, 24, 24, 32, 0), (4, 8, 8, 32, 32, 64, 1), (1, 8, 8, 64, 64, 128, 0), (1, 8, 8, 128, 128, 64, 1),
              (32, 8, 8, 16, 16, 32, 0)],
}
SWEEP = [(b, h, hk, sq, sk, d, causal) for b, (h, hk), sq, sk, d, causal in itertools.product(
    (1, 8), ((1, 1), (8, 8), (8, 2)), (1, 3, 16, 64, 128), (1, 3, 16, 64, 128, 512), (16, 32, 64, 80, 128), (0, 1))
    if not causal or 1 < sq == sk]
DTYPES = ("float32", "bfloat16", "float16")
NAMES = ("flashattn", "flash", "math", "oneDNN", "ggml")


def ours(flashattn, threads, q, k, v, causal):
    import torch
    out = torch.empty_like(q)
    q, k, v, result = tensors = [tensor(flashattn, t) for t in (q, k, v, out)]
    options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=2 * causal, num_threads=threads)
    pointers = [*addresses(q, k, v, options, result), None]

    def call(alive=(tensors, options)):
        flashattn.check(flashattn.library.fa_forward(*pointers))
        return (out,)
    return timed(call)


def pytorch(backend, q, k, v, causal):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        return (scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=grouped).transpose(1, 2),)

    def in_context(clock):
        with sdpa_kernel(backend):  # not timed: entering costs as much as a small call
            return timed(call)(clock)
    return in_context


def onednn_forward(onednn, threads, q, k, v, causal):
    import torch
    out = torch.empty_like(q)
    return onednn_contender(onednn, threads, q, k, causal, 0, (q, k, v, out), (out,))


def ggml_flash(threads, q, k, v, causal):
    """ggml_flash_attn_ext with float32 Q and float16 K and V, as llama.cpp calls it; None where it does not fit."""
    import ggml
    import torch
    if q.dtype != torch.float16:
        return None
    b, sq, h, d = q.shape
    sk, hk = k.shape[1:3]
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=(512 << 20) + 8 * q.numel() + 4 * k.numel(), mem_buffer=None))

    def tensor(kind, values):
        t = ggml.ggml_new_tensor_4d(context, kind, *reversed(values.shape))
        ctypes.memmove(ggml.ggml_get_data(t), values.data_ptr(), values.numel() * values.element_size())
        return t
    gq = tensor(ggml.GGML_TYPE_F32, q.transpose(1, 2).float().contiguous())
    gk, gv = (tensor(ggml.GGML_TYPE_F16, t.transpose(1, 2).contiguous()) for t in (k, v))
    mask = None
    if causal:
        hidden = torch.full((1, 1, (sq + 63) // 64 * 64, sk), float("-inf"), dtype=torch.float16).triu(1 + sk - sq)
        mask = tensor(ggml.GGML_TYPE_F16, hidden)
    result = ggml.ggml_flash_attn_ext(context, gq, gk, gv, mask, d ** -0.5, 0.0, 0.0)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, result)

    def call():
        ggml.ggml_graph_compute_with_ctx(context, graph, threads)
        address = ctypes.cast(ggml.ggml_get_data(result), ctypes.POINTER(ctypes.c_float))
        return (torch.frombuffer((ctypes.c_float * (b * sq * h * d)).from_address(
            ctypes.addressof(address.contents)), dtype=torch.float32).view(b, sq, h, d),)
    return timed(call)


def matmul_attention(q, k, v, causal):
    """As one would write it with torch.matmul."""
    import torch
    group, scale = q.shape[2] // k.shape[2], q.shape[3] ** -0.5
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2]) if causal else None

    def call():
        keys, values = (k, v) if group == 1 else (t.repeat_interleave(group, 1) for t in (k, v))
        scores = torch.matmul(q, keys.transpose(2, 3)) * scale
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        return (torch.matmul(torch.softmax(scores, -1), values).transpose(1, 2),)
    return timed(call)


def numpy_attention(q, k, v, causal):
    """As one would write it in NumPy."""
    import numpy
    import torch
    group, scale = q.shape[2] // k.shape[2], numpy.float32(q.shape[3] ** -0.5)
    q, k, v = (t.numpy().transpose(0, 2, 1, 3) for t in (q, k, v))
    hidden = numpy.triu(numpy.ones((q.shape[2], k.shape[2]), bool), 1 + k.shape[2] - q.shape[2]) if causal else None

    def call():
        keys, values = (k, v) if group == 1 else (numpy.repeat(t, group, 1) for t in (k, v))
        scores = q @ keys.swapaxes(2, 3) * scale
        if hidden is not None:
            scores[..., hidden] = -numpy.inf
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        return (torch.from_numpy((weights / weights.sum(-1, keepdims=True) @ values).transpose(0, 2, 1, 3)),)
    return timed(call)


def inputs(case, dtype):
    import torch
    b, h, hk, sq, sk, d, _ = case
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))]


def label(case):
    return ", ".join(map(str, case[:6])) + (" causal" if case[6] else "")


def flops(case):
    b, h, _, sq, sk, d, causal = case
    return 4.0 * b * h * (sq * (sk - sq) + sq * (sq + 1) / 2 if causal else sq * sk) * d


def compare(flashattn, arguments):
    import torch
    from torch.nn.attention import SDPBackend
    onednn = load_onednn()
    threads, rows = arguments.threads, []
    print(f"PyTorch {torch.__version__}, {threads} thread(s), best of {arguments.rounds} rounds, milliseconds\n")
    table_head("b, h, hk, sq, sk, d", NAMES)
    for kind, dtype in itertools.product(arguments.cases.split(","), arguments.dtypes.split(",")):
        for case in CASES[kind]:
            b, h, _, sq, sk, _, causal = case
            qkv = inputs(case, dtype)
            contenders = {"flashattn": ours(flashattn, threads, *qkv, causal),
                          "flash": pytorch(SDPBackend.FLASH_ATTENTION, *qkv, causal)}
            if b * h * sq * sk <= 1 << 26:
                contenders["math"] = pytorch(SDPBackend.MATH, *qkv, causal)
            others = {"oneDNN": onednn_forward(onednn, threads, *qkv, causal) if onednn else None,
                      "ggml": ggml_flash(threads, *qkv, causal) if arguments.with_ggml else None}
            contenders.update((name, run) for name, run in others.items() if run is not None)
            check(contenders, f"{label(case)} {dtype}", dtype)
            best = measure(contenders, arguments.rounds, clock_of(threads))
            table_row(label(case), dtype, NAMES, best, flops(case))
            rows.append((label(case), dtype, best, flops(case)))
    if arguments.plot:
        plot(arguments.plot, "forward", rows, threads)


def sweep(flashattn, arguments):
    from torch.nn.attention import SDPBackend
    clock, slower, count = clock_of(arguments.threads), 0, 0
    names = ("flashattn", "math", "matmul", "NumPy")
    table_head("b, h, hk, sq, sk, d", names)
    for case, dtype in itertools.product(SWEEP, arguments.dtypes.split(",")):
        qkv, causal = inputs(case, dtype), case[6]
        contenders = {"flashattn": ours(flashattn, arguments.threads, *qkv, causal),
                      "math": pytorch(SDPBackend.MATH, *qkv, causal), "matmul": matmul_attention(*qkv, causal)}
        if dtype == "float32":
            contenders["NumPy"] = numpy_attention(*qkv, causal)
        check(contenders, f"{label(case)} {dtype}", dtype)
        best = measure(contenders, arguments.rounds, clock)
        if best_peer(best)[0] < best["flashattn"]:
            best = measure(contenders, 2 * arguments.rounds, clock)
        if best_peer(best)[0] < best["flashattn"]:
            table_row(label(case), dtype, names, best, flops(case))
            slower += 1
        count += 1
    print(f"\nflashattn was slower than plain attention in {slower} of {count} cases, {arguments.threads} thread(s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--cases", default="prefill,decode,small")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--with-ggml", action="store_true")
    arguments = parser.parse_args()
    enter_venv(arguments.venv, arguments.with_ggml)
    os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)  # NumPy's, read when it is loaded
    import torch
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    run = sweep if arguments.cases == "sweep" else compare
    run(load(arguments.library), arguments)


if __name__ == "__main__":
    main()
