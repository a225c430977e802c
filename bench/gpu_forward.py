#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward on one NVIDIA GPU against PyTorch's FlashAttention-2 and cuDNN, in the same run.

    python3 bench/gpu_forward.py LIBRARY [--kernel v1,v2] [--head-dim 64,128,256] [--seqlen 512,..,16384] [--causal 0,1]

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

TOKENS, HIDDEN = 16384, 2048
KERNELS = {"v1": 4, "v2": 5, "v3": 6}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

    def __init__(self, t):
        code = 4 if t.dtype == torch.bfloat16 else 2
        self.shape_values = (ctypes.c_int64 * t.ndim)(*t.shape)
        self.stride_values = (ctypes.c_int64 * t.ndim)(*t.stride())
        super().__init__(t.data_ptr(), 2, t.device.index, t.ndim, code, t.element_size() * 8, 1, self.shape_values,
                         self.stride_values, 0)


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("set", ctypes.c_uint32), ("softmax_scale", ctypes.c_float),
                ("softcap", ctypes.c_float), ("causal", ctypes.c_int), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64)] + \
               [(name, ctypes.c_void_p) for name in ("alibi_slopes", "sink", "bias", "mask", "cu_seqlens_q",
                                                     "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k",
                                                     "block_table")] + \
               [("max_seqlen_q", ctypes.c_int64), ("max_seqlen_k", ctypes.c_int64), ("kernel", ctypes.c_int),
                ("isa", ctypes.c_int), ("num_threads", ctypes.c_int32), ("num_splits", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("dbias", ctypes.c_void_p), ("dsink", ctypes.c_void_p),
                ("dalibi_slopes", ctypes.c_void_p), ("deterministic", ctypes.c_int32), ("reserved", ctypes.c_int32)]


def ours(library, kernel, q, k, v, out, lse, causal):
    tensors = [Tensor(t) for t in (q, k, v, out, lse)]

    def call():
        options = Options(size=ctypes.sizeof(Options), causal=int(causal), kernel=KERNELS[kernel],
                          stream=torch.cuda.current_stream().cuda_stream)
        status = library.fa_forward(*[ctypes.byref(t) for t in tensors[:3]], ctypes.byref(options),
                                    ctypes.byref(tensors[3]), ctypes.byref(tensors[4]))
        if status != 0:
            raise RuntimeError(library.fa_last_error().decode())
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
    parser.add_argument("--kernel", default="v1,v2")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    library.fa_last_error.restype = ctypes.c_char_p
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
                contenders += [ours(library, name, q, k, v, out, lse, causal) for name in kernels]
                ms = milliseconds([capture(c, calls) for c in contenders], calls, arguments.rounds)
                rates = [flops / t * 1e-9 for t in ms]
                print(f"{head_dim:8} {'yes' if causal else 'no':>6} {seqlen:6} {rates[0]:6.0f} {rates[1]:6.0f}" +
                      "".join(f"{r:7.0f} {r / rates[0]:7.2f}" for r in rates[2:]), flush=True)


if __name__ == "__main__":
    main()
