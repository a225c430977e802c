# SPDX-License-Identifier: Apache-2.0
# Counts the output of `ctest -V` and prints "PASSED FAILED SKIPPED"; names what failed or was skipped on stderr.
# A test that prints a summary of its own (cmocka's, or a line "N passed, N failed") counts with those numbers, any
# other as one. A test that ctest saw fail counts at least one failure, whatever it printed before. Below each name of a
# failed test stands, indented, what it printed last.

# "12: line" is a line of output of test 12.
/^[0-9]+: / {
    test = $1
    if ($0 ~ /: \[  (PASSED |FAILED |SKIPPED) \] [0-9]+ test\(s\)/) {
        own[test] = 1
        listing = 1
        if ($3 == "PASSED") passed[test] += $5
        if ($3 == "FAILED") failed[test] += $5
        if ($3 == "SKIPPED") skipped[test] += $5
    } else if ($0 ~ /: \[  FAILED  \] / && listing) {
        detail[test] = detail[test] " " $5
    } else if ($0 ~ /: [0-9]+ passed, [0-9]+ failed$/) {
        own[test] = 1
        passed[test] += $2
        failed[test] += $4
    } else if ($0 ~ /: \[==========\]/) listing = 0
    remember($0)
}

function remember(line) {
    sub(/^[0-9]+: /, "", line)
    if (line ~ /^\[ RUN      \]/) {
        running[test] = 1
        lines[test] = 0
    } else if (line ~ /^\[  FAILED  \]/ && running[test]) {
        running[test] = 0
        report[test] = report[test] latest()
    } else line_of[test, ++lines[test]] = line
}

function latest(    i, text) {
    for (i = lines[test] > 10 ? lines[test] - 9 : 1; i <= lines[test]; i++) text = text "        " line_of[test, i] "\n"
    lines[test] = 0
    return text
}

# " 3/8 Test  #4: name .......   Passed    0.01 sec" is the verdict on test 4.
/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: / {
    match($0, /#[0-9]+:/)
    test = substr($0, RSTART + 1, RLENGTH - 1)
    name = $0
    sub(/^[^:]*: /, "", name)
    sub(/ .*/, "", name)
    verdicts++
    if ($0 ~ /\*\*\*Skipped/) skipped[test] = 1
    else if ($0 ~ / Passed +[0-9.]+ sec/) {
        if (!own[test]) passed[test] = 1
    } else if (!failed[test]) failed[test] = 1
    if (failed[test]) {
        print "FAILED  " name (detail[test] ? ":" detail[test] : "") > "/dev/stderr"
        printf "%s", report[test] ? report[test] : latest() > "/dev/stderr"
    }
    if (skipped[test]) print "skipped " skipped[test] " of " name > "/dev/stderr"
}

END {
    for (test in passed) sum_passed += passed[test]
    for (test in failed) sum_failed += failed[test]
    for (test in skipped) sum_skipped += skipped[test]
    if (!verdicts) {
        print "FAILED  ctest ran nothing" > "/dev/stderr"
        sum_failed++
    }
    print sum_passed + 0, sum_failed + 0, sum_skipped + 0
}
