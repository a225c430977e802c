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

BATCH, HEADS = 1, 8


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

    def __init__(self, t):
        code = 4 if t.dtype == torch.bfloat16 else 2
        self.shape_values = (ctypes.c_int64 * t.ndim)(*t.shape)
        self.stride_values = (ctypes.c_int64 * t.ndim)(*t.stride())
        super().__init__(t.data_ptr(), 1, 0, t.ndim, code, t.element_size() * 8, 1, self.shape_values,
                         self.stride_values, 0)


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("set", ctypes.c_uint32), ("softmax_scale", ctypes.c_float),
                ("softcap", ctypes.c_float), ("causal", ctypes.c_int), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("tensors", ctypes.c_void_p * 10),
                ("max_seqlen_q", ctypes.c_int64), ("max_seqlen_k", ctypes.c_int64), ("kernel", ctypes.c_int),
                ("isa", ctypes.c_int), ("num_threads", ctypes.c_int32), ("num_splits", ctypes.c_int32),
                ("stream", ctypes.c_void_p)]


def check(library, status):
    if status != 0:
        raise RuntimeError(library.fa_last_error().decode())


def measure(library, clock, dtype, threads, seqlen, head_dim, causal, rounds):
    torch.set_num_threads(threads)
    q, k, v = (torch.randn(BATCH, HEADS, seqlen, head_dim).to(dtype).requires_grad_() for _ in range(3))
    peer_out = scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
    dout = torch.randn(BATCH, HEADS, seqlen, head_dim).to(dtype)
    out = torch.empty_like(dout)
    gradients = [torch.empty_like(dout) for _ in range(3)]
    lse = Tensor(torch.empty(BATCH, HEADS, seqlen))
    tensor = {name: Tensor(t.detach().transpose(1, 2)) for name, t in
              (("dout", dout), ("q", q), ("k", k), ("v", v), ("out", out), ("dq", gradients[0]),
               ("dk", gradients[1]), ("dv", gradients[2]))}
    lse_storage = torch.empty(BATCH, HEADS, seqlen)
    lse = Tensor(lse_storage)
    options = Options(size=ctypes.sizeof(Options), causal=int(causal), num_threads=threads)
    by = ctypes.byref
    check(library, library.fa_forward(by(tensor["q"]), by(tensor["k"]), by(tensor["v"]), by(options),
                                      by(tensor["out"]), by(lse)))

    def ours():
        check(library, library.fa_backward(by(tensor["dout"]), by(tensor["q"]), by(tensor["k"]), by(tensor["v"]),
                                           by(tensor["out"]), by(lse), by(options), by(tensor["dq"]),
                                           by(tensor["dk"]), by(tensor["dv"])))

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
    library = ctypes.CDLL(arguments.library)
    library.fa_last_error.restype = ctypes.c_char_p
    print(f"PyTorch {torch.__version__}")
    print("| dtype | threads | head_dim | causal | seqlen | ms | PyTorch ms | GFLOP/s | PyTorch / flashattn |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    ratios = [measure(library, clock, getattr(torch, dtype), threads, seqlen, head_dim, causal, arguments.rounds)
              for dtype in arguments.dtype for threads in arguments.threads for head_dim in arguments.head_dim
              for causal in arguments.causal for seqlen in arguments.seqlen]
    print(f"lowest ratio {min(ratios):.2f}")


if __name__ == "__main__":
    main()
