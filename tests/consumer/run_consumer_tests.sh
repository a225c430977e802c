#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build, moves the installed tree, and builds and runs programs against it as other projects would:
# C and C++, shared and static, by find_package and by pkg-config.
#   run_consumer_tests.sh BUILD_DIR
set -euo pipefail

build=$(realpath "$1")
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
prefix="$work/moved here" # an installed tree may be moved, also to a path with a space
mv "$work/first" "$prefix"
libdir=$(dirname "$(find "$prefix" -name libflashattn.a)")

passed=0 failed=0
check() { # check NAME COMMAND...: one test
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        sed 's/^/        /' "$work/log"
    fi
}

build_with_cmake() {
    cmake -S "$source" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_FLAGS="-Wall -Werror" -DCMAKE_CXX_FLAGS="-Wall -Werror" &&
        cmake --build "$work/cmake"
}
check "find_package: configure and build" build_with_cmake
for program in c_flashattn c_flashattn_static cxx_flashattn cxx_flashattn_static; do
    check "find_package: $program runs" "$work/cmake/$program"
done
refused() { # a version that is not there
    ! cmake -S "$source" -B "$work/refused" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED=99.0 2>&1 | tee "$work/output" &&
        grep -q 'compatible with requested version "99.0"' "$work/output"
}
check "find_package: another major version is refused" refused

export PKG_CONFIG_PATH="$libdir/pkgconfig"
header_version=$(sed -nE 's/^#define FA_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' "$prefix/include/flashattn.h" | paste -sd.)
check "pkg-config: the version is that of the header" test "$(pkg-config --modversion flashattn)" = "$header_version"
compile() { # compile OUTPUT COMPILER SOURCE [--static]: link as pkg-config says
    local output=$1 compiler=$2 file=$3 flags
    shift 3
    flags=$(pkg-config --cflags --libs "$@" flashattn)
    [ $# -eq 0 ] || flags=${flags/-lflashattn/-l:libflashattn.a}
    eval "$compiler -Wall -Werror \"$source/$file\" -o \"$work/$output\" $flags"
}
for static in "" --static; do
    check "pkg-config $static: C" compile "pc_c$static" "gcc -std=c11" consumer.c $static
    check "pkg-config $static: C runs" env LD_LIBRARY_PATH="$libdir" "$work/pc_c$static"
    check "pkg-config $static: C++" compile "pc_cxx$static" "g++ -std=c++17" consumer.cpp $static
    check "pkg-config $static: C++ runs" env LD_LIBRARY_PATH="$libdir" "$work/pc_cxx$static"
done
if [ -x "$prefix/bin/flashattn" ]; then
    check "the installed command runs" "$prefix/bin/flashattn" info
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
