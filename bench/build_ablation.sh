#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds libflashattn with the v3 forward kernel as it is, and once more without each of its techniques (the switches of
# src/kernels/v3_forward.c), then prints the command that measures them. Needs nvcc, but no GPU: the libraries, files
# DIRECTORY/NAME.so of a few megabytes in all, run where they are copied to. Only the kernels that are measured are built: bfloat16, head_dim 64, 128
# and 256, no softcap, ALiBi, bias or boolean mask.
#   bench/build_ablation.sh [DIRECTORY]   default build/ablation
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

directory=${1:-build/ablation}
names=(default no_warp_specialisation no_ping_pong no_overlap)
flags=("" -DWARP_SPECIALISATION=0 -DPING_PONG=0 -DOVERLAP=0)
libraries=()

for i in "${!names[@]}"; do
    name=${names[i]}
    build=$directory/build/$name
    mkdir -p "$build"
    echo "Building $directory/$name.so ..."
    if ! { cmake -S . -B "$build" -DFLASHATTN_CUDA=ON -DFLASHATTN_TOOLS=OFF -DFLASHATTN_TESTS=OFF \
        -DFLASHATTN_KERNELS='v3_forward, sm90a, bf16, (64|128|256), 0,' -DFLASHATTN_KERNEL_FLAGS="${flags[i]}" &&
        cmake --build "$build" -j "$(nproc)" --target flashattn; } >"$build/log.txt" 2>&1; then
        tail -n 40 "$build/log.txt" >&2
        exit 1
    fi
    cp "$build/libflashattn.so" "$directory/$name.so"
    libraries+=("$name=$directory/$name.so")
done

echo "python3 bench/gpu_forward.py --ablation ${libraries[*]}"
