#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every public header compiles alone, twice included, as C11 and as C++17, with each compiler that is here.
set -u

include=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../include")
flags=(-pedantic -Wall -Wextra -Wconversion -Wshadow -Wundef -Werror -fsyntax-only -I "$include")
passed=0 failed=0
for header in "$include"/*.h; do
    name=$(basename "$header")
    for compile in "gcc -x c -std=c11" "clang -x c -std=c11" "g++ -x c++ -std=c++17" "clang++ -x c++ -std=c++17"; do
        command -v "${compile%% *}" >/dev/null || continue
        if printf '#include <%s>\n#include <%s>\n' "$name" "$name" | $compile "${flags[@]}" -; then
            passed=$((passed + 1))
        else
            echo "FAILED  $name: $compile"
            failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
