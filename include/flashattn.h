/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flashattn: exact attention, O = softmax(softmax_scale * Q K^T + bias, masked) V, and its gradients, in memory O(N).
 *
 * This header is the manual. It compiles alone as C11 and as C++17 and needs nothing but the C library.
 *
 * A first call, float32, [batch, seqlen, heads, head_dim], compact row-major:
 *
 *     int64_t shape[4] = {2, 1024, 8, 64};
 *     fa_tensor q = {.data = q_data, .device = {FA_DEVICE_CPU, 0}, .ndim = 4,
 *                    .dtype = FA_FLOAT32, .shape = shape};
 *     ... k, v and out likewise ...
 *     fa_options options = {.size = sizeof options, .causal = FA_CAUSAL_BOTTOM_RIGHT};
 *     if (fa_forward(&q, &k, &v, &options, &out, NULL) != FA_OK) puts(fa_last_error());
 *
 * What every function here promises
 *   - Each returns a status. When it is not FA_OK, fa_last_error() gives one sentence that names the argument, its
 *     value and the rule, and nothing was written to any output. What cannot be honoured is refused, never ignored.
 *   - Thread-safe. The caller's thread count, floating-point mode, current device and stream stay as they are. No
 *     function prints, aborts or exits. Inputs are never written.
 *   - Sizes, strides and offsets are 64-bit throughout. Sizes of zero succeed: there is just nothing, or zeros, to
 *     write.
 *
 * Numbers, in short (docs/numerics.md has the bounds and their reasons)
 *   - Products, softmax state (running max m, running sum l) and output are accumulated in float32 for every input
 *     type. Weights are float32 too, except on instruction sets with bfloat16 dot products: see fa_isa.
 *   - A query that may see no key gets O = 0 and lse = -inf (with a sink: O = 0, lse = the sink), never NaN.
 *   - Only -inf masks. A bias of -1e30 is a value like any other. NaN or infinity in a key or value that no query sees
 *     reaches no output; on the CPU it reaches exactly the queries that see it, on a GPU it may also reach others
 *     nearby: of the same tile of queries, or that see a key of the same tile of keys. NaN in a query reaches its own row.
 *   - lse (log-sum-exp) is a natural logarithm, of the scaled, capped and biased scores, sink included.
 *   - The order of score changes: s = softmax_scale * q.k; s = softcap * tanh(s / softcap); s += bias + ALiBi; masks;
 *     softmax.
 *
 * The algorithm is FlashAttention-2 (Dao, 2023, arXiv 2307.08691) on the online softmax of Milakov and Gimelshein
 * (2018, arXiv 1805.02867).
 */
#ifndef FLASHATTN_H
#define FLASHATTN_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && !defined(FA_STATIC)
#    ifdef FA_BUILDING
#        define FA_API __declspec(dllexport)
#    else
#        define FA_API __declspec(dllimport)
#    endif
#elif defined(__GNUC__)
#    define FA_API __attribute__((visibility("default")))
#else
#    define FA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ----------------------------------------------------------------------------------------------------- */

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0
#define FA_VERSION (FA_VERSION_MAJOR * 10000 + FA_VERSION_MINOR * 100 + FA_VERSION_PATCH)

/* FA_VERSION of the library that is loaded, which may differ from the header it was compiled against. */
FA_API int fa_version(void);
/* The same as text, "0.1.0". */
FA_API const char *fa_version_text(void);

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* The numbers are part of the ABI and never change. */
typedef enum fa_status {
    FA_OK = 0,
    FA_INVALID_ARGUMENT = 1, /* an argument breaks a stated rule (shape, stride, dtype, range, NULL) */
    FA_UNSUPPORTED = 2,      /* a valid request that the chosen back end, or this machine or build, cannot carry out */
    FA_OUT_OF_MEMORY = 3,    /* working memory could not be had; fa_plan() tells how much a call needs */
    FA_DEVICE_ERROR = 4      /* a GPU, its driver or the emulator reported a failure */
} fa_status;

/* What a status means, in a few words. Never NULL, also for numbers that are no status. */
FA_API const char *fa_status_text(fa_status status);

/* The sentence for the last call of this thread that did not return FA_OK; "" if there was none. Valid until
 * the next call that fails in this thread. */
FA_API const char *fa_last_error(void);

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/*
 * fa_tensor has the layout of DLPack's DLTensor (v0.8 and v1.x), so a DLTensor* may be passed where a
 * fa_tensor* is asked for: arrays of NumPy, PyTorch, JAX and CuPy are used where they lie.
 */
typedef struct fa_device {
    int32_t device_type; /* DLDeviceType: FA_DEVICE_CPU or FA_DEVICE_CUDA */
    int32_t device_id;   /* 0 for the CPU */
} fa_device;

#define FA_DEVICE_CPU 1  /* kDLCPU */
#define FA_DEVICE_CUDA 2 /* kDLCUDA */

typedef struct fa_dtype {
    uint8_t code;   /* DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
    uint8_t bits;   /* 8, 16, 32, 64 */
    uint16_t lanes; /* 1 */
} fa_dtype;

#define FA_DTYPE_INT 0
#define FA_DTYPE_UINT 1
#define FA_DTYPE_FLOAT 2
#define FA_DTYPE_BFLOAT 4
#define FA_DTYPE_BOOL 6

/* Initialisers: fa_dtype t = FA_FLOAT32; */
#define FA_FLOAT64 \
    { FA_DTYPE_FLOAT, 64, 1 }
#define FA_FLOAT32 \
    { FA_DTYPE_FLOAT, 32, 1 }
#define FA_FLOAT16 \
    { FA_DTYPE_FLOAT, 16, 1 }
#define FA_BFLOAT16 \
    { FA_DTYPE_BFLOAT, 16, 1 }
#define FA_INT32 \
    { FA_DTYPE_INT, 32, 1 }
#define FA_BOOL \
    { FA_DTYPE_BOOL, 8, 1 }

typedef struct fa_tensor {
    void *data;
    fa_device device;
    int32_t ndim;
    fa_dtype dtype;
    int64_t *shape;       /* [ndim] */
    int64_t *strides;     /* [ndim], in elements, may be 0 or negative; NULL: compact, row-major */
    uint64_t byte_offset; /* added to data */
} fa_tensor;

/*
 * Shapes used below. b = batch, h = heads, hk = heads_kv, d = head_dim, dv = head_dim_v.
 *
 *              dense               variable length       paged
 *     q        [b, seqlen_q, h, d]   [total_q, h, d]       as dense or variable length
 *     k        [b, seqlen_k, hk, d]  [total_k, hk, d]      [pages, page_size, hk, d]
 *     v        [b, seqlen_k, hk, dv] [total_k, hk, dv]     [pages, page_size, hk, dv]
 *     out      [b, seqlen_q, h, dv]  [total_q, h, dv]      like q
 *     lse      [b, h, seqlen_q]      [h, total_q]          like q
 *
 * q and k/v choose independently: options.cu_seqlens_q makes q and out variable length, options.cu_seqlens_k
 * k and v.
 *
 * dtype      q, k, v all float32, all float16 or all bfloat16; out the same or float32; lse float32. The kernels
 *            FA_KERNEL_REFERENCE and FA_KERNEL_STANDARD take float64 as well (all of q, k, v), and the reference also
 *            writes float64 out and lse for any input.
 * head_dim, head_dim_v   1..256, not necessarily equal.
 * heads      a multiple of heads_kv: query head i reads key/value head i / (heads / heads_kv) (GQA, Ainslie et al. 2023;
 *            heads_kv = 1 is MQA).
 * strides    any, including 0 and negative, but 1 in the last dimension.
 * pointers   need not be aligned to the element size (on a GPU: must be). Inputs may overlap each other (V a view of
 *            K). An output must have no two elements at one address and must not overlap an input or the other output.
 */

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/* Which keys a query may see by its position. Query i of a sequence with seqlen_q queries and seqlen_k keys:
 */
typedef enum fa_causal {
    FA_CAUSAL_NONE = 0, /* every key */
    /* keys j <= i + seqlen_k - seqlen_q: the last query sees the last key (FlashAttention >= 2.1) */
    FA_CAUSAL_BOTTOM_RIGHT = 1,
    /* keys j <= i: the first query sees only the first key (PyTorch's is_causal) */
    FA_CAUSAL_TOP_LEFT = 2
} fa_causal;

/*
 * Who computes. Tensors on a GPU are computed there. GPU kernels want every tensor aligned to its element size, and
 * are fastest where rows of q, k, v and out are aligned to 16 bytes.
 *
 * Tensors on the CPU: FA_KERNEL_AUTO is FA_KERNEL_CPU, unless the environment variable FLASHATTN_MACHINE names an
 * emulated GPU: emulated-a100, emulated-rtx3090, emulated-h100, emulated-h200 or emulated-b200. Then FA_KERNEL_AUTO is
 * the best GPU kernel for that part, and it, FA_KERNEL_STANDARD and FA_KERNEL_V1 .. FA_KERNEL_V4 run in the emulator, by the rules
 * for GPUs: for tests and for study, thousands of times slower than a GPU. FLASHATTN_MACHINE=emulated-h100:7 adds a
 * seed for the order in which the emulated threads run.
 */
typedef enum fa_kernel {
    FA_KERNEL_AUTO = 0, /* the best that the tensors' device, this machine and this build have */
    FA_KERNEL_CPU = 1,  /* FlashAttention-2 tiling for caches and vector units */
    /* CPU, float64, one row at a time: slow and obvious; what everything else is judged against */
    FA_KERNEL_REFERENCE = 2,
    FA_KERNEL_STANDARD = 3, /* CPU or GPU, attention as written before FlashAttention, every intermediate rounded to
                               the input's dtype: the yardstick of the error budgets in docs/numerics.md (CPU) and
                               of speed and traffic (GPU, where its working memory is the matrix of all scores) */
    FA_KERNEL_V1 = 4,       /* GPU, FlashAttention (2022) */
    FA_KERNEL_V2 = 5,       /* GPU, FlashAttention-2 (2023) */
    FA_KERNEL_V3 = 6,       /* GPU, FlashAttention-3 (2024), Hopper */
    FA_KERNEL_V4 = 7        /* GPU, FlashAttention-4 (2026), Blackwell */
} fa_kernel;

/*
 * Instruction set of the CPU kernel. FA_ISA_AUTO takes the last one of this list that the machine has, but
 * FA_ISA_AVX512_BF16 only where that is faster than FA_ISA_AVX512 (AMD, since Zen 4). It takes FA_ISA_AMX for bfloat16, and
 * in fa_forward for each sequence of other inputs that is long: more than 128 rows of queries, counted over the heads of a
 * group, at least 256 keys and a head_dim and head_dim_v of at least 64; fa_plan() says so if there is one.
 *
 * FA_ISA_AVX512_BF16, FA_ISA_AMX and FA_ISA_NEON_BF16 have products of bfloat16 numbers. With bfloat16 inputs they round
 * the weights exp(s - max) to bfloat16 before the product with V, as GPU kernels do, where FA_ISA_AVX512 and FA_ISA_NEON
 * keep them in float32; scores, sums and lse stay float32; fa_backward rounds P and dS likewise (docs/numerics.md). Of
 * other inputs FA_ISA_AMX multiplies bfloat16 parts that add up to the same numbers, within the error of float32; not so in
 * fa_backward. For all else, FA_ISA_AVX512_BF16 and FA_ISA_NEON_BF16 with other inputs, FA_ISA_AMX with the few query rows
 * of decoding, they stand for FA_ISA_AVX512 or FA_ISA_NEON; fa_plan() says so of the dtype.
 *
 * FA_ISA_AMX makes Linux reserve room for tile registers in signal frames of this process (arch_prctl
 * ARCH_REQ_XCOMP_PERM); FA_ISA_AUTO asks for that on machines with AMX. FA_ISA_NEON_BF16 is found on Linux only
 * (AT_HWCAP2).
 */
typedef enum fa_isa {
    FA_ISA_AUTO = 0,        /* or the environment variable FLASHATTN_ISA, one of the names below in small letters */
    FA_ISA_PORTABLE = 1,    /* C without intrinsics */
    FA_ISA_NEON = 2,        /* aarch64 */
    FA_ISA_AVX2 = 3,        /* x86-64 with AVX2, FMA and F16C */
    FA_ISA_AVX512 = 4,      /* x86-64 with AVX-512 F, BW, DQ and VL */
    FA_ISA_AVX512_BF16 = 5, /* and AVX-512 BF16 */
    FA_ISA_AMX = 6,         /* and AMX with BF16 */
    FA_ISA_NEON_BF16 = 7    /* aarch64 with BF16 (FEAT_BF16) */
} fa_isa;

/* A window bound of FA_WINDOW_OPEN lets every key on that side through. */
#define FA_WINDOW_OPEN (-1)

/* Bits of options.set: fields for which 0 is a value of its own are read only if their bit is set; giving
 * such a field a value without its bit is refused. */
#define FA_SET_SOFTMAX_SCALE 1u
#define FA_SET_WINDOW 2u

/*
 * Zero-initialise, then set size: everything else means its default. A NULL fa_options* means all defaults.
 * Later versions add fields at the end; size tells which the caller knows. Bytes beyond what the library
 * knows must be zero.
 *
 * Tensors named here are used during the call only; any strides; on the CPU for calls on the CPU.
 */
typedef struct fa_options {
    size_t size;  /* sizeof(fa_options) */
    uint32_t set; /* FA_SET_... bits */

    float softmax_scale; /* FA_SET_SOFTMAX_SCALE. Default 1/sqrt(head_dim). Finite; 0 gives the mean over the
                            visible keys; negative allowed. */
    float softcap;       /* s = softcap * tanh(s / softcap) (Gemma 2). 0: none. Finite, > 0 otherwise. */
    fa_causal causal;    /* default FA_CAUSAL_NONE */

    /* FA_SET_WINDOW. Sliding window, inclusive on both sides: query i, at position p = i + seqlen_k - seqlen_q, sees
     * p - window_left <= j <= p + window_right. FA_WINDOW_OPEN (-1) opens a side; other negatives are refused; 0 is a
     * value. With FA_CAUSAL_TOP_LEFT p = i. Combines with causal (the narrower bound holds). Default: both open. With
     * seqlen_q = seqlen_k:
     *     window_left  window_right   query 10 sees keys
     *     -1           -1             all
     *     -1            0             0..10     the same as causal
     *      3            0             7..10     what model code calls "sliding window 4"
     *      0            0             10
     *      2            1             8..11
     */
    int64_t window_left;
    int64_t window_right;

    /* ALiBi (Press et al. 2021): score -= slope * |i + seqlen_k - seqlen_q - j|. float32, [heads] or [batch,
     * heads]. The slopes are an input always, so that a rank holding heads 4..7 of 8 passes those four. NULL:
     * none. */
    const fa_tensor *alibi_slopes;
    /* Attention sink: a logit per head that takes part in the softmax's denominator and has no value. Natural
     * units, not scaled, not capped. float32, [heads]. NULL: none. */
    const fa_tensor *sink;
    /* Additive bias, natural units, after softmax_scale and softcap. float32, float16 or bfloat16;
     * [b or 1, h or 1, seqlen_q or 1, seqlen_k or 1]; for variable length, the rows and columns of a sequence
     * count from its first query and key, and the extents must reach the longest one. -inf masks. NULL: none.
     */
    const fa_tensor *bias;
    /* Boolean mask, nonzero: the query may see the key. bool or uint8; shape like bias. NULL: none. */
    const fa_tensor *mask;

    /* Variable length: sequence n has queries cu_seqlens_q[n] .. cu_seqlens_q[n+1]-1 of q, likewise k. int32,
     * [b + 1], starting at 0, never falling, not beyond total_q, total_k. Queries beyond cu_seqlens_q[b]
     * belong to no sequence: they see no key. NULL: dense. */
    const fa_tensor *cu_seqlens_q;
    const fa_tensor *cu_seqlens_k;
    /* Used lengths: only the first seqused[n] queries (keys) of sequence n count; seqlen_q and seqlen_k in
     * all rules above are these. int32, [b], 0 .. length of the sequence. Unused queries see no key; unused keys
     * are not read. NULL: all. */
    const fa_tensor *seqused_q;
    const fa_tensor *seqused_k;
    /* The first leftpad_k[n] keys of sequence n are padding: never read, and rules on position hold for the
     * rest as if they were not there (columns of bias and mask keep counting from the padded start). int32,
     * [b], 0 .. used length. NULL: none. */
    const fa_tensor *leftpad_k;
    /* Paged K/V: key j of sequence n is row j % page_size of page block_table[n][j / page_size]. int32, [b,
     * max_pages]; any page_size >= 1. Needs seqused_k, excludes cu_seqlens_k. Entries beyond the used length
     * are not read. NULL: not paged. */
    const fa_tensor *block_table;
    /* The longest sequence, if the caller knows it; 0: not stated. A real length above a stated maximum is
     * refused where the lengths lie on the host. */
    int64_t max_seqlen_q;
    int64_t max_seqlen_k;

    /* How it is computed; none of these changes what is computed. */
    fa_kernel kernel;    /* default FA_KERNEL_AUTO */
    fa_isa isa;          /* FA_KERNEL_CPU only. An instruction set that the machine lacks is refused. */
    int32_t num_threads; /* 0: environment variable FLASHATTN_NUM_THREADS, else the CPUs of the caller's affinity
                        mask within the cgroup's CPU quota. At most 4096. Results do not depend on it, bit for bit.
                        A process forked from one that had called the library uses one: OpenMP's threads do not
                        survive fork(). */
    int32_t num_splits;  /* the keys of a (batch, head) are cut into this many parts that are computed apart
                           and merged (backward: dq is summed from them). 0: by a rule on the shapes alone; 1: never,
                           so that a row's bits do not depend on its batch. At most 256. */
    void *stream;        /* GPU: CUstream / cudaStream_t to enqueue on. NULL: the legacy default stream. CPU: must be
                     NULL. */

    /* fa_backward: gradients of what is given above, written if asked for. fa_forward refuses them, and so does
     * fa_backward if their counterpart is not given. NULL: not wanted.
     *
     * dbias: shape of bias; float32 or bias's dtype. Summed over the dimensions in which bias has extent 1; 0 for
     * entries of hidden pairs and of no pair. dsink: float32, [heads]. dalibi_slopes: float32, shape of
     * alibi_slopes. */
    const fa_tensor *dbias;
    const fa_tensor *dsink;
    const fa_tensor *dalibi_slopes;
    /* fa_backward. 1: the same bits in every run. 0: the fastest way, which on a GPU may add in any order. The CPU
     * kernel is deterministic either way, and so is fa_forward. */
    int32_t deterministic;
    int32_t reserved; /* must be 0; here so that the struct ends without padding */
} fa_options;

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/*
 * Attention. Every element of out, and of lse if given, is written.
 *
 * lse may be NULL. Errors: FA_INVALID_ARGUMENT, FA_UNSUPPORTED, FA_OUT_OF_MEMORY, FA_DEVICE_ERROR.
 * Memory: a call on the CPU allocates working memory as fa_plan() tells and frees it before it returns: what the threads
 * need, which does not grow with seqlen_k, and up to 64 MiB for K and V, packed once for all query tiles.
 */
FA_API fa_status fa_forward(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                            const fa_tensor *out, const fa_tensor *lse);

/*
 * Gradients, by recomputation from the inputs and results of fa_forward (FlashAttention-2, sections 2.3.2 and 3.1.2):
 * no matrix is kept between the two calls. For a loss L with dout = dL/dout, over the pairs that see each other, with
 * the score s_ij and the order of score changes as stated at the top:
 *
 *     P_ij = exp(s_ij - lse_i)       D_i = dot(dout_i, out_i)       dS_ij = P_ij * (dot(dout_i, v_j) - D_i)
 *     dV_j = sum_i P_ij dout_i       dbias_ij = dS_ij               dT_ij = dS_ij * (1 - tanh^2(.)) with softcap
 *     dQ_i = softmax_scale * sum_j dT_ij k_j                        dK_j  = softmax_scale * sum_i dT_ij q_i
 *     dslope_h = -sum_ij dS_ij * |i + seqlen_k - seqlen_q - j|      dsink_h = -sum_i exp(sink_h - lse_i) D_i
 *
 * Without softcap dT = dS. With grouped heads dK and dV are sums over the group.
 *
 * dout     shape of out; q's dtype or float32. Strides of its own: any, 0 included, but 1 in the last dimension.
 * q, k, v, options    as for fa_forward. Paged K/V (block_table) is refused: FA_UNSUPPORTED.
 * out      what fa_forward wrote; q's dtype or float32. Any strides, but 1 in the last dimension.
 * lse      what fa_forward wrote, float32. Not NULL. Both may also come from fa_combine over more keys than these: then
 *          the results are these keys' part of the gradients (context parallelism), dsink apart, which is the whole.
 * dq       shape of q;  dk  shape of k;  dv  shape of v;  each q's dtype or float32, NULL: not wanted. Every element is
 *          written. Outputs must not overlap one another or an input.
 *
 * The reference also takes float64 dout, out and lse and writes float64 gradients, for any input.
 *
 * A query that may see no key, or whose lse is -inf, contributes exactly 0 everywhere, whatever its q, dout, out and
 * lse hold, and its dq is 0; a key that no query sees gets dk = dv = 0. NaN or infinity spreads only between queries and
 * keys that see each other: exactly so on the CPU; on a GPU also to other queries and keys of the same tiles, where some of
 * them see each other.
 *
 * On a GPU: FA_KERNEL_V2 and on Hopper FA_KERNEL_V3, which FA_KERNEL_AUTO takes where TMA can read q, k and v, as in
 * fa_forward; float16 and bfloat16. dq and dk are summed in float32 before they are multiplied by softmax_scale. With
 * options.deterministic every shape gives the same bits in every run; without it, only dq may differ, in the order in which
 * its parts are added. It is fastest where rows of q, k, v and dout are aligned to 16 bytes; dout that is not is copied
 * first, and so is a float32 dout, rounded to q's dtype.
 *
 * Errors and memory as for fa_forward; fa_plan_backward() tells the working memory, which is linear in the number of
 * queries.
 */
FA_API fa_status fa_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                             const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                             const fa_tensor *dk, const fa_tensor *dv);

/* What fa_forward, or fa_backward, would do with the same arguments. */
typedef struct fa_plan_info {
    size_t size;             /* in: sizeof(fa_plan_info) */
    fa_kernel kernel;        /* never FA_KERNEL_AUTO */
    fa_isa isa;              /* CPU kernel: the instruction set that will run */
    char name[64];           /* "cpu_forward avx512 float32 d128" */
    int32_t tile_rows;       /* rows of a query tile: queries times the heads of a group */
    int32_t tile_keys;       /* keys of a tile */
    int32_t num_splits;      /* parts of the key range */
    int32_t num_threads;     /* threads that will be used */
    int64_t workspace_bytes; /* working memory */
    char note[160]; /* FA_KERNEL_AUTO on a GPU: why a newer kernel than this one was passed over; "": none was */
} fa_plan_info;

/*
 * Fills *plan with what fa_forward would run for these arguments, or returns the very status and sentence
 * that fa_forward would refuse them with: both ask the same function. Reads no q, k or v and writes no
 * output; data pointers of q, k, v, out and lse may be NULL here.
 */
FA_API fa_status fa_plan(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                         const fa_tensor *out, const fa_tensor *lse, fa_plan_info *plan);
/* The same for fa_backward; data pointers of dout, dq, dk and dv may be NULL as well, and so may those of dbias, dsink
 * and dalibi_slopes. */
FA_API fa_status fa_plan_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                                  const fa_tensor *out, const fa_tensor *lse, const fa_options *options,
                                  const fa_tensor *dq, const fa_tensor *dk, const fa_tensor *dv, fa_plan_info *plan);

/*
 * Merges partial attention results of the same queries over disjoint sets of keys (key splits, ranks of a
 * context-parallel group): out = sum_s w_s * out_partial[s], w_s = exp(lse_partial[s] - lse), lse = log sum_s
 * exp(lse_partial[s]), computed with a maximum so that it never overflows. A part whose lse is -inf is left
 * out whatever its output holds; if all are, O = 0 and lse = -inf.
 *
 * out_partial  float32, [splits, b, seqlen_q, h, dv] or [splits, total_q, h, dv], already normalised (as
 * fa_forward writes it) lse_partial  float32, [splits, b, h, seqlen_q] or [splits, h, total_q] out float32,
 * float16 or bfloat16, shape of one part;  lse  float32, shape of one part, or NULL
 */
FA_API fa_status fa_combine(const fa_tensor *out_partial, const fa_tensor *lse_partial, const fa_tensor *out,
                            const fa_tensor *lse);

/* ---- What is here ------------------------------------------------------------------------------------------------ */

/* FA_OK if this build and machine can run the instruction set, else FA_UNSUPPORTED with the reason in
 * fa_last_error(). */
FA_API fa_status fa_isa_supported(fa_isa isa);
/* FA_OK if this build and machine can run the kernel at all, else FA_UNSUPPORTED with the reason. */
FA_API fa_status fa_kernel_supported(fa_kernel kernel);
/* "avx512", "cpu": the spelling that environment variables and the command line use; "unknown" for other
 * numbers. */
FA_API const char *fa_isa_name(fa_isa isa);
FA_API const char *fa_kernel_name(fa_kernel kernel);
/* The number of threads that num_threads = 0 means now: see fa_options. */
FA_API int fa_default_num_threads(void);
/*
 * One line about the machine on which GPU kernels run for tensors of this device, "cuda:0: NVIDIA H200, sm_90, ...".
 * For {FA_DEVICE_CPU, 0} that is the emulated GPU of FLASHATTN_MACHINE. If there is none, FA_UNSUPPORTED (no driver, no
 * GPU, the variable is not set) or FA_INVALID_ARGUMENT (device_id beyond the last GPU) with the reason. text holds
 * `size` bytes and is cut if need be; 192 are enough.
 */
FA_API fa_status fa_machine_text(fa_device device, char *text, size_t size);

/*
 * Work of an emulated GPU. "By threads" counts each thread that makes a call, "by warps" a warp's common call once.
 * Bytes of global memory are those that a kernel asks for: on a GPU, caches serve some of them.
 */
typedef struct fa_machine_work {
    size_t size;                   /* in: sizeof(fa_machine_work) */
    uint64_t global_bytes_read;    /* loads, cp.async, TMA and bulk copies; what TMA fills with zeros is not read */
    uint64_t global_bytes_written; /* stores, TMA and bulk stores, reductions and atomics */
    uint64_t async_copy_bytes;     /* the part of both that cp.async, TMA and bulk copies move */
    uint64_t shared_bytes_read;    /* loads, ldmatrix, bulk stores, and operands that wgmma reads there */
    uint64_t shared_bytes_written; /* stores, stmatrix, cp.async, TMA and bulk copies */
    uint64_t tensor_flops;         /* 2 m n k for each matrix instruction */
    uint64_t exp2_calls;           /* by threads */
    uint64_t other_special_calls;  /* by threads: log2, reciprocal, square root, tanh */
    uint64_t shuffles;             /* by warps */
    uint64_t votes;                /* by warps */
    uint64_t barriers;             /* by warps: of a block, of some of its warps, of a cluster */
    uint64_t mbarrier_arrivals;    /* by threads */
    uint64_t mbarrier_waits;       /* by threads */
    uint64_t global_atomics;       /* by threads */
} fa_machine_work;

/*
 * What the emulated GPU of FLASHATTN_MACHINE has done in this process so far, launches that failed left out: call it
 * before and after, and take the difference. device is {FA_DEVICE_CPU, 0}; a real GPU does not count (FA_UNSUPPORTED).
 */
FA_API fa_status fa_machine_count(fa_device device, fa_machine_work *work);

#ifdef __cplusplus
}
#endif

#endif
