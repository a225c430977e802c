#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward on one NVIDIA GPU against PyTorch's FlashAttention-2 and cuDNN, in the same run.

    python3 bench/gpu_forward.py LIBRARY [--kernel v1,v2,v3] [--head-dim 64,128,256] [--seqlen 512,..,16384] [--causal 0,1]

LIBRARY is libflashattn.so. 16384 tokens and hidden size 2048 at every point, bfloat16, random normal data. Each
contender is captured in a CUDA graph of several calls, so that no launch overhead of the host is measured; graphs are
replayed in turns (A B C A B C ...), and the median of the replays counts. FLOPs: 4 b h s^2 d, half of it if causal.
"""
import argparse
import ctypes
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from library import addresses, load, tensor

TOKENS, HIDDEN = 16384, 2048


def ours(flashattn, kernel, q, k, v, out, lse, causal):
    tensors = [tensor(flashattn, t) for t in (q, k, v, out, lse)]

    def call():
        options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=int(causal),
                                    kernel=flashattn.KERNELS[kernel], stream=torch.cuda.current_stream().cuda_stream)
        flashattn.check(flashattn.library.fa_forward(*addresses(*tensors[:3], options, *tensors[3:])))
    return call


def peer(backend, q, k, v, causal):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
    return call


def capture(call, calls):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def milliseconds(graphs, calls, rounds):
    times = [[] for _ in graphs]
    for graph in graphs:
        graph.replay()
    for _ in range(rounds):
        for graph, values in zip(graphs, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            values.append(begin.elapsed_time(end) / calls)
    return [statistics.median(values) for values in times]


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--kernel", default="v1,v2,v3")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    flashattn = load(arguments.library)
    kernels = arguments.kernel.split(",")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; TFLOP/s, "
          "ratio to FlashAttention-2")
    print("head_dim causal seqlen    FA2  cuDNN" + "".join(f"{name:>7}   ratio" for name in kernels))
    torch.manual_seed(0)
    for head_dim in arguments.head_dim:
        for causal in arguments.causal:
            for seqlen in arguments.seqlen:
                batch, heads = TOKENS // seqlen, HIDDEN // head_dim
                q, k, v = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16)
                           for _ in range(3))
                out = torch.empty_like(q)
                lse = torch.empty(batch, heads, seqlen, device="cuda")
                flops = 4.0 * batch * heads * seqlen * seqlen * head_dim / (2 if causal else 1)
                calls = max(1, min(10, int(3e12 / flops)))
                contenders = [peer(SDPBackend.FLASH_ATTENTION, q, k, v, causal),
                              peer(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)]
                contenders += [ours(flashattn, name, q, k, v, out, lse, causal) for name in kernels]
                ms = milliseconds([capture(c, calls) for c in contenders], calls, arguments.rounds)
                rates = [flops / t * 1e-9 for t in ms]
                print(f"{head_dim:8} {'yes' if causal else 'no':>6} {seqlen:6} {rates[0]:6.0f} {rates[1]:6.0f}" +
                      "".join(f"{r:7.0f} {r / rates[0]:7.2f}" for r in rates[2:]), flush=True)


if __name__ == "__main__":
    main()
