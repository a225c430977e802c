#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backward on the CPU against PyTorch's CPU flash backward, in the same run.

    python3 bench/cpu_backward.py LIBRARY [--dtype float32,bfloat16] [--threads 1,2] [--head-dim 64,128]
                                  [--seqlen 512,1024,2048] [--causal 0,1] [--rounds 7] [--clock wall|cpu]

LIBRARY is libflashattn.so. Batch 1, 8 heads, random normal data; both read the same tensors, [batch, heads, seqlen,
head_dim] in memory. Calls alternate, and the fastest of each counts. FLOPs: 10 b h s^2 d, half of it if causal. --clock cpu
counts processor time in place of wall time: for one thread on a machine that others use as well.
"""
import argparse
import ctypes
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from library import addresses, load, tensor

BATCH, HEADS = 1, 8


def measure(flashattn, clock, dtype, threads, seqlen, head_dim, causal, rounds):
    torch.set_num_threads(threads)
    q, k, v = (torch.randn(BATCH, HEADS, seqlen, head_dim).to(dtype).requires_grad_() for _ in range(3))
    peer_out = scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
    dout = torch.randn(BATCH, HEADS, seqlen, head_dim).to(dtype)
    out = torch.empty_like(dout)
    gradients = [torch.empty_like(dout) for _ in range(3)]
    lse = torch.empty(BATCH, HEADS, seqlen)
    inputs = [t.detach().transpose(1, 2) for t in (dout, q, k, v, out)] + [lse]
    inputs = [tensor(flashattn, t) for t in inputs]
    outputs = [tensor(flashattn, t.transpose(1, 2)) for t in gradients]
    options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=int(causal), num_threads=threads)
    flashattn.check(flashattn.library.fa_forward(*addresses(*inputs[1:4], options, *inputs[4:])))
    pointers = addresses(*inputs, options, *outputs)

    def ours():
        flashattn.check(flashattn.library.fa_backward(*pointers))

    def peer():
        return torch.autograd.grad(peer_out, (q, k, v), dout, retain_graph=True)

    for expected, x in zip(peer(), (ours(), gradients)[1]):
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        assert (x.float() - expected.float()).abs().max() <= tolerance * expected.float().abs().max()
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for i, call in enumerate((ours, peer)):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    flops = 10 * BATCH * HEADS * seqlen * seqlen * head_dim * (0.5 if causal else 1)
    print(f"| {str(dtype)[6:]} | {threads} | {head_dim} | {'yes' if causal else 'no'} | {seqlen} | "
          f"{best[0] * 1e3:.1f} | {best[1] * 1e3:.1f} | {flops / best[0] / 1e9:.0f} | {best[1] / best[0]:.2f} |",
          flush=True)
    return best[1] / best[0]


def main():
    numbers = lambda text: [int(x) for x in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    flashattn = load(arguments.library)
    print(f"PyTorch {torch.__version__}")
    print("| dtype | threads | head_dim | causal | seqlen | ms | PyTorch ms | GFLOP/s | PyTorch / flashattn |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    ratios = [measure(flashattn, clock, getattr(torch, dtype), threads, seqlen, head_dim, causal, arguments.rounds)
              for dtype in arguments.dtype for threads in arguments.threads for head_dim in arguments.head_dim
              for causal in arguments.causal for seqlen in arguments.seqlen]
    print(f"lowest ratio {min(ratios):.2f}")


if __name__ == "__main__":
    main()
