#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports exactly the functions of the public headers, and tests/exported_symbols.txt lists them:
# a symbol that comes or goes is a change of the ABI, to be made on purpose. And dlopen() takes it: with thread-local
# variables in static storage it would depend on how much of that the program has left.
#   check_exported_symbols.sh LIBFLASHATTN.SO
set -u

tests=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | LC_ALL=C sort) || exit 1
declared=$(cat "$tests"/../include/*.h | tr '\n' ' ' |
    grep -oE '\bFA_API [a-z_ ]*[ *]fa_[a-z0-9_]+\(' | grep -oE 'fa_[a-z0-9_]+\($' | tr -d '(' | LC_ALL=C sort)
passed=0 failed=0
compare() { # compare WHAT LIST LIST
    if difference=$(diff <(echo "$2") <(echo "$3")); then
        passed=$((passed + 1))
    else
        echo "FAILED  $1:"
        echo "$difference"
        failed=$((failed + 1))
    fi
}
compare "exported (>) differs from tests/exported_symbols.txt (<)" "$(cat "$tests/exported_symbols.txt")" "$exported"
compare "exported (>) differs from the functions declared FA_API (<)" "$declared" "$exported"
compare "the dynamic section asks for static thread-local storage (>)" "" "$(readelf -dW "$1" | grep -o STATIC_TLS)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
