#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# README.md shows examples/attention.c, which is compiled and run, word for word; and every file it links to exists.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

readme=$(cat README.md) passed=0 failed=0
report() { # report WHAT CODE
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED  README.md: $1"; fi
}
[[ $readme == *$'```c\n'"$(tail -n +2 examples/attention.c)"$'\n```'* ]]
report "the program differs from examples/attention.c" $?
for link in $(grep -oE '\]\([^)#]+' README.md | cut -c3- | grep -v '^http'); do
    [ -e "$link" ]
    report "there is no $link" $?
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
