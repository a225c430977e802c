# SPDX-License-Identifier: Apache-2.0
# Toolchain file: aarch64 from another machine, programs run by qemu's user mode emulation. With Debian's packages
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
# "max" has all that the emulator knows of, BF16 among it. The path of libraries keeps the C library of another package,
# libc6:arm64, out where that is installed: together with the cross compiler's dynamic loader, threads would hang.
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib)
