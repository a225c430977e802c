#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backward on the CPU against PyTorch and oneDNN, in the same run.

    python3 bench/cpu_backward.py LIBRARY [--threads 1] [--rounds 7] [--cases prefill,grid] [--dtypes float32,bfloat16]
                                          [--plot FILE.png] [--venv DIR]

LIBRARY is libflashattn.so; for DIR, clocks and turns see cpu_peers.py. All read the same tensors: in the cases prefill, the
shapes of cpu_peers.py, [batch, seqlen, heads, head_dim], in grid [batch, heads, seqlen, head_dim] with batch 1 and 8 heads.
Random normal data. Everybody starts from an out and, but for math, an lse. FLOPs: 10 d for each pair of a query and a key
that it may see.

flash: the backward of scaled_dot_product_attention with SDPBackend.FLASH_ATTENTION. math: of plain attention, whose weights
forward has left. oneDNN: onednn_attention.c, the fastest of a few compositions of oneDNN's matmuls.
"""
import argparse
import ctypes
import itertools

from cpu_peers import CASES, label
from library import addresses, load, tensor
from peers import (add_options, check, clock_of, enter_venv, load_onednn, measure, onednn_contender, plot, table_head,
                   table_row, timed)

GRID = [(1, 8, 8, s, s, d, causal) for d, causal, s in itertools.product((64, 128), (0, 1), (512, 1024, 2048))]
NAMES = ("flashattn", "flash", "math", "oneDNN")


def inputs(case, dtype, heads_first):
    """dout, q, k, v as [batch, seqlen, heads, head_dim]."""
    import torch
    b, h, hk, sq, sk, d, _ = case
    shapes = [(b, n, s, d) if heads_first else (b, s, n, d) for n, s in ((h, sq), (h, sq), (hk, sk), (hk, sk))]
    tensors = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
    return [t.transpose(1, 2) if heads_first else t for t in tensors]


def ours(flashattn, threads, dout, q, k, v, causal):
    """The contender, and the out and lse of its forward."""
    import torch
    out, lse = torch.empty_like(q), torch.empty(q.shape[0], q.shape[2], q.shape[1])
    gradients = [torch.empty_like(t) for t in (q, k, v)]
    structs = [tensor(flashattn, t) for t in (dout, q, k, v, out, lse)]
    options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=2 * causal, num_threads=threads)
    flashattn.check(flashattn.library.fa_forward(*addresses(*structs[1:4], options, *structs[4:])))
    results = [tensor(flashattn, t) for t in gradients]
    pointers = addresses(*structs, options, *results)

    def call(alive=(structs, options, results)):
        flashattn.check(flashattn.library.fa_backward(*pointers))
        return gradients
    return timed(call), out, lse


def pytorch(backend, dout, q, k, v, causal):
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in leaves), is_causal=bool(causal),
                                           enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)
    return timed(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--cases", default="prefill,grid")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    arguments = parser.parse_args()
    enter_venv(arguments.venv)
    import torch
    from torch.nn.attention import SDPBackend
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    flashattn, onednn, threads, rows = load(arguments.library), load_onednn(), arguments.threads, []
    print(f"PyTorch {torch.__version__}, {threads} thread(s), best of {arguments.rounds} rounds, milliseconds\n")
    table_head("b, h, hk, sq, sk, d", NAMES)
    for kind, dtype in itertools.product(arguments.cases.split(","), arguments.dtypes.split(",")):
        for case in GRID if kind == "grid" else CASES[kind]:
            b, h, _, sq, sk, d, causal = case
            dout, q, k, v = inputs(case, dtype, kind == "grid")
            contender, out, lse = ours(flashattn, threads, dout, q, k, v, causal)
            contenders = {"flashattn": contender, "flash": pytorch(SDPBackend.FLASH_ATTENTION, dout, q, k, v, causal)}
            if b * h * sq * sk <= 1 << 25:
                contenders["math"] = pytorch(SDPBackend.MATH, dout, q, k, v, causal)
            if onednn:
                gradients = [torch.empty_like(t) for t in (q, k, v)]
                composed = onednn_contender(onednn, threads, q, k, causal, 1, (dout, q, k, v, out, lse, *gradients), gradients)
                contenders.update({} if composed is None else {"oneDNN": composed})
            check(contenders, f"{label(case)} {dtype}", dtype)
            best = measure(contenders, arguments.rounds, clock_of(threads))
            flops = 10.0 * b * h * d * (sq * (sq + 1) / 2 if causal else sq * sk)
            table_row(label(case), dtype, NAMES, best, flops)
            rows.append((label(case), dtype, best, flops))
    if arguments.plot:
        plot(arguments.plot, "backward", rows, threads)


if __name__ == "__main__":
    main()
