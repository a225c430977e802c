#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the flashattn command as its users meet it: exit codes, messages, files.
#   run_cli_tests.sh FLASHATTN FAKE_DRIVER_DIRECTORY
set -euo pipefail

flashattn=$(realpath "$1")
fake_driver=$(realpath "$2")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
unset FLASHATTN_ISA FLASHATTN_MACHINE FLASHATTN_NUM_THREADS
export LSAN_OPTIONS=suppressions=$here/../leaks.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS} # for a build with sanitizers
python3 "$here/make_inputs.py" "$work"
cd "$work"

passed=0 failed=0
report() { # report NAME CODE: one test
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok      $1"
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
        sed 's/^/        /' log
    fi
}

# test_case NAME FUNCTION [ARGUMENT...]: the function fails by returning nonzero; `log` is shown then. It runs in a shell
# of its own, since `set -e` does not hold in a function whose result is tested.
test_case() {
    local name=$1 code=0
    shift
    set +e
    (
        set -euo pipefail
        "$@"
    ) >log 2>&1
    code=$?
    set -e
    report "$name" "$code"
}

# exits CODE ARGUMENT...: runs the command; its output goes to the files stdout and stderr.
exits() {
    local wanted=$1 code=0
    shift
    "$flashattn" "$@" >stdout 2>stderr || code=$?
    [ "$code" -eq "$wanted" ] && return
    echo "flashattn $*: exit code $code, not $wanted"
    cat stdout stderr
    return 1
}

# refuses CODE PATTERN ARGUMENT...: that exit code, one line on stderr that matches, nothing on stdout.
refuses() {
    local code=$1 pattern=$2
    shift 2
    exits "$code" "$@"
    if [ "$(wc -l <stderr)" -ne 1 ] || ! grep -qE -- "$pattern" stderr || [ -s stdout ]; then
        echo "flashattn $*: wanted one line with '$pattern', got:"
        cat stdout stderr
        return 1
    fi
    if [ "$code" -eq 2 ]; then grep -q -- '--help)$' stderr || { echo "no hint to --help: $(cat stderr)"; return 1; }; fi
}

python() { python3 -c "import tensors as t, pictures as p, json, sys, math
$1"; }

# equal FILE EXPECTED [TOLERANCE]: the same shape, and values within the tolerance; NaN differs.
equal() {
    python "a, b = t.load_npy('$1'), t.load_npy('$2')
assert a[0] == b[0], (a[0], b[0])
assert t.close(a[1], b[1], ${3:-2e-6}), max(map(lambda x, y: abs(x - y), a[1], b[1]))"
}

qkv="q.npy k.npy v.npy"

# ---- Help and versions

help_text() { # help_text COMMAND...
    exits 0 "$@" --help
    [ ! -s stderr ] && grep -q '^Usage' stdout && grep -q '^Examples' stdout
    [ "$(awk '{ print length }' stdout | sort -n | tail -1)" -le 100 ] || { echo "lines too long"; return 1; }
}
test_case "--help" help_text
for command in run check bench count info; do test_case "$command --help" help_text "$command"; done
exit_codes() { exits 0 --help && for code in 0 1 2 3 4; do grep -qE "^  $code  " stdout; done; }
test_case "--help lists the exit codes" exit_codes
every_option_is_documented() {
    # What the tables hold appears in --help, since both are the same; here the ones that users were promised.
    exits 0 run --help
    for name in causal causal-top-left window-left window-right softmax-scale softcap alibi-slopes sink bias mask \
        cu-seqlens-q cu-seqlens-k seqused-q seqused-k leftpad-k block-table kernel isa threads splits layout out-dtype \
        lse output picture head batch labels; do
        grep -qE -- "--$name( |\$)" stdout || { echo "--$name is missing"; return 1; }
    done
}
test_case "run --help names every option" every_option_is_documented
version() { exits 0 --version && grep -qE '^flashattn [0-9]+\.[0-9]+\.[0-9]+$' stdout; }
test_case "--version" version
help_among_others() { exits 0 run --causal q.npy --help && grep -q '^Usage' stdout; }
test_case "--help among other arguments" help_among_others

# ---- GPUs

gpus_are_listed() {
    FLASHATTN_MACHINE=emulated-a100 exits 0 info
    grep -qE '^  gpu        (none   [a-z]|cuda:0: )' stdout && grep -q '^  emulated   emulated-a100: ' stdout
    grep -qE '^  v3 +no +v3_forward.* needs sm_90, and emulated-a100' stdout || { cat stdout; return 1; }
    FLASHATTN_MACHINE=emulated-h200 exits 0 info --json -
    python "
info = json.load(open('stdout'))
assert isinstance(info['gpus'], list) and info['emulated_gpu'].startswith('emulated-h200: '), info
assert info['kernels']['v3']['supported'] and not info['kernels']['v4']['supported'], info['kernels']"
}
test_case "info lists GPUs, and why a kernel cannot run" gpus_are_listed
other_machine_other_kernels_same_tensors() {
    exits 0 info && sed -n '/^Tensors/,$p' stdout >here
    grep -q 'head_dim   1 .. 256' here || { cat here; return 1; }
    local machine
    for machine in emulated-h100 no-such-machine; do
        FLASHATTN_MACHINE=$machine exits 0 info && sed -n '/^Tensors/,$p' stdout | diff here - || return 1
    done
}
test_case "info: tensors do not depend on FLASHATTN_MACHINE" other_machine_other_kernels_same_tensors

test_case "bench --kernel on the CPU" refuses 2 "--kernel: is for --device cuda" bench --kernel v2
test_case "bench --device cuda --plot" refuses 2 "--plot: draws measurements of the CPU" bench --device cuda --plot x.svg
"$flashattn" info >log
if grep -q '^  gpu        none' log; then
    test_case "bench --device cuda without a GPU" refuses 4 "libcuda" bench --device cuda --seqlen 512
    test_case "bench --device cuda --backward without a GPU" refuses 4 "libcuda" bench --device cuda --backward
fi

# A driver without a GPU (tests/gpu/fake_driver.c) says that it is an H200, and that a millisecond goes by whatever is asked of it.
on_fake_gpu() { LD_LIBRARY_PATH=$fake_driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }
measurements_of_a_gpu() { # both passes of the same shapes: kernels, operations, and the columns of the table
    local shapes="--seqlen 512,1024 --head-dim 64 --batch 1 --heads 4 --heads-kv 2 --causal"
    exits 0 bench --device cuda $shapes --json forward.json
    mv stdout forward
    exits 0 bench --device cuda $shapes --json backward.json --backward
    python "
forward, backward = json.load(open('forward.json')), json.load(open('backward.json'))
assert forward['rules'] == 'causal' and backward['rules'] == 'backward, causal', (forward['rules'], backward['rules'])
def operations(report, kernels):
    results = report['results']
    assert [r['kernel'] for r in results] == 2 * kernels, results
    return [r['tflops'] * 1e12 * r['median_seconds'] / (4 * r['heads'] * r['head_dim'] * r['seqlen'] * (r['seqlen'] + 1) / 2)
            for r in results]
assert all(abs(x - 1) < 1e-3 for x in operations(forward, ['standard', 'v1', 'v2', 'v3'])), forward
assert all(abs(x - 2.5) < 1e-3 for x in operations(backward, ['v2', 'v3'])), backward
titles = [next(line.split() for line in open(name) if line.startswith('dtype')) for name in ('forward', 'stdout')]
assert titles[1] == 'dtype head_dim batch heads seqlen v2 v3 v3/v2 of peak'.split(), titles
assert titles[0] == titles[1][:5] + 'standard v1 v2 v3 v1/standard v2/standard v3/standard of peak'.split(), titles"
}
if on_fake_gpu "$flashattn" bench --device cuda --seqlen 512 --time-budget 0.1 >log 2>&1; then
    test_case "bench --device cuda, both passes" on_fake_gpu measurements_of_a_gpu
    test_case "bench --device cuda --backward with a kernel that has none" on_fake_gpu \
        refuses 4 "kernel = v1: has no backward pass on a GPU; v2 and v3 have" \
        bench --device cuda --backward --kernel v1,v2
    test_case "bench --device cuda with a shape that a kernel does not take" on_fake_gpu \
        refuses 4 "kernel = v3: the row stride of q" bench --device cuda --kernel v3 --head-dim 64,65
else
    test_case "bench --device cuda without GPU code in the build" on_fake_gpu \
        refuses 4 "this build has no GPU code, since nvcc was not there" bench --device cuda --backward
fi
test_case "bench --device cuda --kernel cpu" on_fake_gpu refuses 2 "--kernel cpu: runs on the CPU" \
    bench --device cuda --backward --kernel cpu

# ---- Counting

counts_of_a_run() {
    FLASHATTN_MACHINE=emulated-h100 exits 0 run q_f16.npy k_f16.npy v_f16.npy -o count.npy --kernel v2 --count --repeat 2
    grep -qE '^  counted  global memory, read +[0-9.]+ kB$' stdout && grep -qE '^ +tensor cores +[0-9.e-]+ GFLOP$' stdout
}
test_case "run --count" counts_of_a_run
test_case "run --count without an emulated GPU" \
    refuses 4 "FLASHATTN_MACHINE is not set" run $qkv -o x.npy --count --quiet
traffic_of_the_papers() { # read and written by each of standard, v1, v2, v3
    exits 0 count --seqlen 512 --head-dim 64 --json -
    python "
work = {r['kernel']: r['work'] for r in json.load(open('stdout'))['results']}
moved = [work[k]['global_bytes_read'] + work[k]['global_bytes_written'] for k in ('standard', 'v1', 'v2', 'v3')]
assert moved == sorted(moved, reverse=True), moved
assert work['v2']['global_bytes_written'] == 512 * 64 * 2 + 512 * 4, work['v2']
assert work['v2']['tensor_flops'] == 4 * 512 * 512 * 64"
}
test_case "count: less traffic with each version" traffic_of_the_papers
documented_counts() {
    exits 0 count --seqlen 512,1024 --head-dim 64,128 --markdown
    sed '1,/^    flashattn count --seqlen/d' "$here/../../docs/versions.md" | grep '^|' >documented
    diff documented stdout
}
test_case "count: the table of docs/versions.md" documented_counts
test_case "count: a kernel of the CPU" refuses 2 "runs on the CPU, where nothing is counted" count --kernel cpu
test_case "count: a kernel that is not there" refuses 4 "kernel = v4: has no GPU code" count --kernel v4

# ---- Command lines that are wrong

usage() { test_case "usage: $1 [${*:2}]" refuses 2 "$@"; }
usage "no command is given"
usage "frobnicate is not a command" frobnicate
usage "did you mean --causal\?" run $qkv -o x.npy --casual
usage "is not an option" run $qkv -o x.npy --zzzzzz
usage "is not an option" run $qkv -x x.npy
usage "--output needs a value, FILE" run $qkv -o
usage "--output needs a value, FILE" run $qkv -o --causal
usage "--lse has an empty value" run $qkv --lse=
usage "--causal = yes: takes no value" run $qkv -o x.npy --causal=yes
usage "--causal is given twice" run $qkv -o x.npy --causal --causal
usage "give one" run $qkv -o x.npy --causal --causal-top-left
for number in 2x " 2" "" 0x2 1e1 99999999999999999999 two; do
    [ -n "$number" ] && usage "--threads = $number: must be an integer" run $qkv -o x.npy --threads "$number"
done
usage "--threads = 5000: must be 0 .. 4096" run $qkv -o x.npy --threads 5000
usage "--window-left = -2: must be at least -1" run $qkv -o x.npy --window-left -2
for number in nan inf 1.0abc 1e400 " 1" 1,5; do
    usage "--softmax-scale = $number: must be a finite number" run $qkv -o x.npy --softmax-scale "$number"
done
usage "--kernel = v9: must be one of auto, cpu" run $qkv -o x.npy --kernel v9
usage "--isa = sse: must be one of auto, portable" run $qkv -o x.npy --isa sse
usage "--layout = hbsd: must be one of bshd, bhsd" run $qkv -o x.npy --layout hbsd
usage "no input file" run -o x.npy
usage "must be one .safetensors file" run q.npy k.npy -o x.npy
usage "one argument too many" run $qkv q.npy -o x.npy
usage "none of --output, --lse and --picture" run $qkv
usage "name tensors of one input file" run $qkv -o x.npy --q q
usage "--bias = :bias: names a tensor of the file" run $qkv -o x.npy --bias :bias
usage "--head belongs to --picture" run $qkv -o x.npy --head 1
usage "must end in .png, .svg or .pdf" run $qkv --picture head.gif
usage "--head = 4: q has heads 0 .. 3" run $qkv --picture head.png --head 4 --quiet
usage "--batch = 2: the input has batch entries 0 .. 1" run $qkv --picture head.png --batch 2 --quiet
usage "4097 queries and 4097 keys; at most 4096" run too_long.npy too_long.npy too_long.npy --picture h.png --quiet
usage "must be all or some of cpu" check --kernel reference
usage "--expected needs input files" check --expected out.npy
usage "--backward checks gradients" check $qkv --backward --expected out.npy
usage "--expected-lse needs --expected" check $qkv --expected-lse lse.npy
usage "but input files are given" check $qkv --seed 1
usage "--seqlen = 1,,2: must be integers separated by commas" bench --seqlen 1,,2
usage "--seqlen = 0: must be 1 .." bench --seqlen 0
usage "excludes --seqlen-q" bench --seqlen 8 --seqlen-q 8 --seqlen-k 8
usage "must be given together" bench --seqlen-q 8
usage "--time-budget = 0" bench --time-budget 0
usage "one argument too many" bench q.npy
usage "one argument too many" info x
usage "must end in .png" bench --plot speed.txt

# ---- Files that are wrong

file_error() { test_case "file: $1 [${*:2}]" refuses 3 "$@"; }
file_error "missing.npy: cannot be opened" run missing.npy k.npy v.npy -o x.npy
for file in empty.npy magic_only.npy truncated.npy longer.npy header_cut.npy header_huge.npy shape_negative.npy \
    shape_overflow.npy text.npy directory.npy; do
    file_error "$file" run $file k.npy v.npy -o x.npy
done
for file in truncated header_huge json_broken offsets deep; do
    file_error "$file.safetensors" run $file.safetensors -o x.npy
done
file_error "holds? no tensor|no tensor" run named.safetensors -o x.npy
file_error "no tensor|not" run layer.safetensors -o x.npy --bias :missing
file_error "has 5 dimensions; must have at most 4" run five.npy k.npy v.npy -o x.npy
file_error "must have 2 .. 4 dimensions" run one.npy k.npy v.npy -o x.npy
file_error "must have 2 .. 3 dimensions" run $qkv -o x.npy --cu-seqlens-q cu_q.npy
file_error "with --block-table it must have 4" run q.npy k3.npy v3.npy -o x.npy --block-table cu_q.npy
file_error "holds 1099511627776; lengths and pages must fit 32 bits" run $qkv -o x.npy --cu-seqlens-q cu_too_large.npy
file_error "--output: .*x.txt" run $qkv -o x.txt --quiet
file_error "--output: no/such/x.npy" run $qkv -o no/such/x.npy --quiet
file_error "tokens_short.txt: has 2 lines; the sequence has 4 keys" run q_head.npy k_head.npy k_head.npy --picture h.png \
    --labels tokens_short.txt --quiet
file_error "no/h.png" run q_head.npy k_head.npy k_head.npy --picture no/h.png --quiet
file_error "has shape .2, 5, 4, 5.; it must be .2, 5, 4, 6." check layer.safetensors --expected :short
full_disk() { "$flashattn" info >/dev/full 2>stderr && return 1 || [ $? -eq 3 ] && grep -q 'standard output' stderr; }
test_case "file: standard output cannot be written" full_disk

# ---- What the library refuses

library() { test_case "refused: $1 [${*:2}]" refuses 4 "$@"; }
library "k.shape\[3\] = 5: must be 6, q's head_dim" run q.npy k5.npy v.npy -o x.npy
library "q.dtype = int32: must be float32" run q_i32.npy k.npy v.npy -o x.npy
library "q.dtype = float64: must be float32" run q_f64.npy k_f64.npy v_f64.npy -o x.npy
library "k.dtype = float16" run q.npy k_f16.npy v.npy -o x.npy
library "only the cpu kernel has instruction sets" run $qkv -o x.npy --kernel reference --isa portable
library "out.dtype = float64" run $qkv -o x.npy --out-dtype float64
library "seqused_k" run paged.safetensors -o x.npy --block-table :table
library "leftpad_k\[0\] = 2: must be" run $qkv -o x.npy --leftpad-k leftpad.npy --seqused-k used0.npy
isa_of_another_machine() {
    exits 0 info --json -
    isa=$(python "i = json.load(open('stdout'))['instruction_sets']; print([n for n in i if not i[n]['supported']][0])")
    refuses 4 "isa = $isa" run $qkv -o x.npy --isa "$isa"
}
test_case "refused: an instruction set of another machine" isa_of_another_machine
nothing_written() { [ ! -e x.npy ] && [ ! -e x.txt ] && ! ls -A | grep -q '^\.flashattn'; }
test_case "refused calls leave no files" nothing_written

# ---- Results

run_equal() { # run_equal EXPECTED TOLERANCE ARGUMENT...
    local expected=$1 tolerance=$2
    shift 2
    rm -f result.npy
    exits 0 run "$@" -o result.npy
    [ ! -s stderr ]
    equal result.npy "$expected" "$tolerance"
}
test_case "run: GQA, dense" run_equal out.npy 2e-6 $qkv
test_case "run: causal" run_equal out_causal.npy 2e-6 $qkv --causal
test_case "run: causal as a window" run_equal out_causal.npy 2e-6 $qkv --window-right 0
test_case "run: softmax_scale" run_equal out_scaled.npy 2e-6 $qkv --softmax-scale 0.25
test_case "run: bias [seqlen_q, seqlen_k]" run_equal out_bias.npy 2e-6 $qkv --bias bias.npy
test_case "run: one safetensors file" run_equal out.npy 2e-6 layer.safetensors
test_case "run: bias by name from the same file" run_equal out_bias.npy 2e-6 layer.safetensors --bias :bias
test_case "run: bias by FILE:NAME" run_equal out_bias.npy 2e-6 $qkv --bias layer.safetensors:bias
test_case "run: q, k, v by FILE:NAME" run_equal out.npy 2e-6 layer.safetensors:q k.npy layer.safetensors:v
test_case "run: --q, --k, --v" run_equal out.npy 2e-6 named.safetensors --q h0.q --k h0.k --v h0.v
test_case "run: two dimensions are one head" run_equal out2.npy 2e-6 q2.npy k2.npy v2.npy
test_case "run: layout bhsd" run_equal out_bhsd.npy 2e-6 q_bhsd.npy k_bhsd.npy v_bhsd.npy --layout bhsd
test_case "run: float16, float32 output" run_equal out.npy 4e-3 q_f16.npy k_f16.npy v_f16.npy --out-dtype float32
test_case "run: portable" run_equal out.npy 2e-6 $qkv --isa portable
test_case "run: standard kernel" run_equal out.npy 2e-6 $qkv --kernel standard
test_case "run: reference, float64 output" run_equal out_scaled.npy 1e-12 $qkv --kernel reference --out-dtype float64 \
    --softmax-scale 0.25
test_case "run: paged" run_equal out.npy 2e-6 paged.safetensors --block-table :table --seqused-k :used
test_case "run: ALiBi slopes of 0 and sinks of -inf change nothing" run_equal out.npy 2e-6 $qkv \
    --alibi-slopes slopes0.npy --sink sink_none.npy
test_case "run: threads and splits" run_equal out.npy 2e-6 $qkv --threads 3 --splits 2 --repeat 3
dashes() {
    cp q.npy ./-q.npy
    exits 0 run --quiet -o result.npy -- -q.npy k.npy v.npy
    equal result.npy out.npy
}
test_case "run: -- ends the options" dashes

three_dimensions() {
    exits 0 run q3.npy k3.npy v3.npy -o out3.npy --lse lse3.npy
    python "a, b = t.load_npy('out3.npy'), t.load_npy('out.npy')
assert a[0] == (5, 4, 6) and t.close(a[1], b[1][:120], 2e-6)
a, b = t.load_npy('lse3.npy'), t.load_npy('lse.npy')
assert a[0] == (4, 5) and t.close(a[1], b[1][:20], 2e-6)"
}
test_case "run: three dimensions are one batch entry" three_dimensions
variable_length() {
    exits 0 run q_packed.npy k_packed.npy v_packed.npy -o packed.npy --lse packed_lse.npy --cu-seqlens-q cu_q.npy \
        --cu-seqlens-k cu_k.npy
    python "a, b = t.load_npy('packed.npy'), t.load_npy('out.npy')
assert a[0] == (10, 4, 6) and t.close(a[1], b[1], 2e-6)
a, b = t.load_npy('packed_lse.npy'), t.load_npy('lse.npy')
assert a[0] == (4, 10)
assert t.close(a[1], [b[1][(n * 4 + h) * 5 + i] for h in range(4) for n in range(2) for i in range(5)], 2e-6)"
}
test_case "run: variable length, int64 lengths" variable_length
lse() { exits 0 run $qkv --lse result_lse.npy && equal result_lse.npy lse.npy; }
test_case "run: --lse alone" lse
two_ways() { # two_ways "ARGUMENTS" "ARGUMENTS": the same result
    exits 0 run $1 -o first.npy
    exits 0 run $2 -o second.npy
    equal first.npy second.npy
}
test_case "run: boolean mask = bias of -inf" two_ways "$qkv --mask mask.npy" "$qkv --bias bias_hides.npy"
test_case "run: left padding = boolean mask" two_ways "$qkv --leftpad-k leftpad.npy" "$qkv --mask mask.npy"
test_case "run: used keys = fewer keys" two_ways "$qkv --seqused-k used4.npy --causal" "q.npy k4.npy v4.npy --causal"
test_case "run: top-left, window" two_ways "$qkv --causal-top-left" "$qkv --window-right 0 --causal-top-left --window-left 9"
safetensors_output() {
    exits 0 run layer.safetensors -o result.safetensors
    python "tensors, metadata = t.load_safetensors('result.safetensors')
assert tensors['out'][:2] == ('F32', (2, 5, 4, 6)) and t.close(tensors['out'][2], t.load_npy('out.npy')[1], 2e-6)
assert tensors['lse'][:2] == ('F32', (2, 4, 5)) and t.close(tensors['lse'][2], t.load_npy('lse.npy')[1], 2e-6)
assert 'cpu_forward' in metadata['plan'] and metadata['flashattn']"
}
test_case "run: .safetensors output holds out and lse" safetensors_output
same_bits() {
    exits 0 run long.npy long.npy long.npy -o one.npy.npy --threads 1
    exits 0 run long.npy long.npy long.npy -o four.npy --threads 4
    cmp one.npy.npy four.npy
}
test_case "run: the same bits for any number of threads" same_bits
summary() {
    exits 0 run $qkv -o result.npy --causal
    for word in 'float32 \[2, 5, 4, 6\]' 'causal' 'cpu_forward' 'GFLOP/s' '-> result.npy'; do grep -q -- "$word" stdout; done
}
test_case "run: the summary says what ran" summary
quiet() { exits 0 run $qkv -o result.npy --quiet && [ ! -s stdout ] && [ ! -s stderr ]; }
test_case "run: --quiet" quiet

# ---- Outputs appear whole or not at all

keeps_old_output() {
    echo old >kept.npy
    exits 3 run truncated.npy k.npy v.npy -o kept.npy
    exits 4 run q_f64.npy k.npy v.npy -o kept.npy
    [ "$(cat kept.npy)" = old ]
}
test_case "atomic: a refused call keeps the old file" keeps_old_output
half_written() {
    echo old >kept.npy
    (
        trap '' XFSZ # writing beyond the limit fails instead of killing
        ulimit -f 4
        exits 3 run large.npy large.npy large.npy -o kept.npy --quiet
    )
    [ "$(cat kept.npy)" = old ] && ! ls -A | grep '^\.flashattn'
}
test_case "atomic: a write that fails half way keeps the old file" half_written
over_input() {
    cp q.npy both.npy
    exits 0 run both.npy k.npy v.npy -o both.npy
    equal both.npy out.npy
}
test_case "atomic: the output may replace an input" over_input
read_only() {
    mkdir -p locked && chmod 555 locked
    if [ "$(id -u)" -eq 0 ]; then return 0; fi # root may write anywhere
    exits 3 run $qkv -o locked/x.npy
}
test_case "atomic: a directory without write permission" read_only

# ---- check

check_passes() { # check_passes ARGUMENT...
    exits 0 check "$@"
    grep -q 'within budget' stdout && ! grep -q OVER stdout && [ ! -s stderr ]
}
test_case "check: default types, small" check_passes --seqlen 40 --seed 1
test_case "check: GQA, causal, unequal lengths and head dims" check_passes --batch 2 --heads 6 --heads-kv 2 --seqlen-q 33 \
    --seqlen-k 70 --head-dim 40 --head-dim-v 24 --causal --seed 2
test_case "check: window, softcap, one type" check_passes --seqlen 65 --window-left 9 --softcap 3 --dtype bfloat16
test_case "check: files" check_passes $qkv --causal
test_case "check: gradients" check_passes --backward --batch 2 --heads 6 --heads-kv 2 --seqlen-q 33 --seqlen-k 70 \
    --head-dim 40 --head-dim-v 24 --causal --softcap 3 --seed 3
test_case "check: gradients, files" check_passes $qkv --backward
check_backward_json() {
    exits 0 check --backward --seqlen 20 --isa portable --dtype float32 --json -
    python "r = json.load(open('stdout'))['results']
assert [x['gradient'] for x in r] == ['dq', 'dk', 'dv'] and all(x['within_budget'] for x in r)"
}
test_case "check: gradients, --json -" check_backward_json
check_backward_kernel() { refuses 4 "kernel = v1: has no backward pass on a GPU" check --backward --kernel v1 --seqlen 16; }
test_case "check: gradients of a kernel that has none" check_backward_kernel
test_case "check: files and an output from elsewhere" check_passes layer.safetensors --expected :expected \
    --expected-lse lse.npy
check_fails() { # check_fails ARGUMENT...
    exits 1 check "$@"
    grep -q 'OVER' stdout
}
test_case "check: a wrong output is over budget" check_fails layer.safetensors --expected :wrong
test_case "check: a wrong lse is over budget" check_fails layer.safetensors --expected :expected --expected-lse lse_wrong.npy
test_case "check: NaN is over budget" check_fails layer.safetensors --expected :nan
seed() {
    exits 0 check --seqlen 16 --seed 77 --isa portable && grep -q 'seed 77' stdout && cp stdout first
    exits 0 check --seqlen 16 --seed 77 --isa portable && cmp stdout first
    exits 0 check --seqlen 16 --isa portable && grep -qE 'seed [0-9]+' stdout
}
test_case "check: the seed is printed and repeats the result" seed
check_json() {
    exits 1 check layer.safetensors --expected :wrong --isa portable --json -
    python "r = json.load(open('stdout'))['results']
assert [x['what'] for x in r] == ['cpu portable', 'expected'] and [x['within_budget'] for x in r] == [True, False]
assert 0.009 < r[1]['max_error'] < 0.011"
}
test_case "check: --json -" check_json

# ---- bench

bench="--threads 1 --time-budget 0.3"
bench_table() {
    exits 0 bench $bench --seqlen 16,32 --heads 2 --head-dim 8 --causal
    grep -q 'causal' stdout && grep -qE '^ +16 ' stdout && grep -qE '^ +32 ' stdout && grep -q 'of peak' stdout
    [ ! -s stderr ]
}
test_case "bench: table" bench_table
bench_json() {
    exits 0 bench $bench --seqlen 64 --heads 4 --heads-kv 2 --head-dim 16 --causal --json bench.json
    grep -q 'GFLOP/s' stdout
    python "r = json.load(open('bench.json'))
assert r['threads'] == 1 and len(r['results']) == 1
x = r['results'][0]
assert (x['batch'], x['heads'], x['heads_kv'], x['seqlen_q'], x['seqlen_k'], x['head_dim']) == (1, 4, 2, 64, 64, 16)
assert x['flops'] == 4 * 4 * (64 * 65 // 2) * 16, x['flops']
assert x['repetitions'] >= 1 and 0 < x['best_seconds'] <= x['median_seconds']
assert abs(x['gflops'] / (x['flops'] / x['best_seconds'] * 1e-9) - 1) < 1e-3
assert x['fma_peak_gflops'] > 0.1 and abs(x['share_of_peak'] / (x['gflops'] / x['fma_peak_gflops']) - 1) < 1e-3"
}
test_case "bench: --json FILE" bench_json
bench_backward() {
    exits 0 bench $bench --backward --seqlen 32 --heads 2 --head-dim 8 --json -
    python "r = json.load(open('stdout'))
assert r['rules'] == 'backward, no mask'
x = r['results'][0]
assert x['backward'] and x['plan'].startswith('cpu_backward ') and x['flops'] == 10 * 2 * 32 * 32 * 8"
}
test_case "bench: backward" bench_backward
bench_lists() {
    exits 0 bench $bench --seqlen-q 1,2 --seqlen-k 8,16 --head-dim 4,8 --dtype all --isa portable --json -
    python "r = json.load(open('stdout'))['results']
assert len(r) == 2 * 2 * 2 * 3, len(r)
assert len({(x['dtype'], x['seqlen_q'], x['seqlen_k'], x['head_dim']) for x in r}) == len(r)"
}
test_case "bench: lists give every combination" bench_lists
bench_isas() {
    exits 0 info --json - && cp stdout info.json
    exits 0 bench $bench --seqlen 16 --heads 1 --head-dim 8 --isa all --json -
    python "i = json.load(open('info.json'))['instruction_sets']
bfloat16 = ['avx512_bf16', 'neon_bf16']
assert [x['isa'] for x in json.load(open('stdout'))['results']] == [n for n in i if i[n]['supported'] and n not in bfloat16]"
    exits 0 bench $bench --seqlen 16 --heads 1 --head-dim 8 --isa all --dtype bfloat16 --json -
    python "i = json.load(open('info.json'))['instruction_sets']
assert [x['isa'] for x in json.load(open('stdout'))['results']] == [n for n in i if i[n]['supported']]"
}
test_case "bench: --isa all" bench_isas
bench_ceilings() {
    exits 0 bench --ceilings $bench --json ceilings.json
    grep -q 'portable, float32 multiply-adds' stdout && grep -q 'reading 512 MiB' stdout
    python "r = json.load(open('ceilings.json'))
assert r['threads'] == 1 and {'portable', 'read_l2', 'read_512m', 'triad'} <= {x['name'] for x in r['ceilings']}
assert all(x['one_thread'] > 0.01 and x['all_threads'] == x['one_thread'] for x in r['ceilings'])"
    exits 2 bench --ceilings --seqlen 16
}
test_case "bench: --ceilings" bench_ceilings
plot() {
    for kind in png svg pdf; do
        exits 0 bench $bench --seqlen 8,16,32 --heads 2 --head-dim 8,16 --isa all --plot plot.$kind
        grep -q "plot.$kind" stdout
    done
    python "w, h, rows = p.read_png('plot.png')
assert w > 800 and h > 500 and len(p.colours(rows)) > 20
p.check_svg('plot.svg'); p.check_pdf('plot.pdf')"
}
test_case "bench: plots" plot
too_many_lines() { refuses 2 "more than 16 lines" bench --heads 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 --plot x.svg; }
test_case "bench: a plot of too many lines is refused at once" too_many_lines

# ---- info

info() {
    exits 0 info
    for word in portable avx512 neon reference float16 head_dim block-table; do grep -q -- "$word" stdout; done
    exits 0 info --json info.json && grep -q Kernels stdout
    exits 0 info --json -
    cmp stdout info.json
    python "i = json.load(open('info.json'))
assert i['instruction_sets']['portable']['supported'] and i['kernels']['cpu']['supported']
assert all(x['supported'] or x['reason'] for x in i['instruction_sets'].values())
assert i['dtypes'] == ['float32', 'float16', 'bfloat16'] and i['largest_head_dim'] == 256 and i['default_threads'] >= 1"
}
test_case "info: text and JSON" info
threads_variable() {
    FLASHATTN_NUM_THREADS=3 exits 0 info
    grep -q '3 by default, by FLASHATTN_NUM_THREADS' stdout
}
test_case "info: FLASHATTN_NUM_THREADS" threads_variable

# ---- Pictures

picture() {
    for kind in png svg pdf; do
        exits 0 run q_head.npy k_head.npy k_head.npy --causal --labels tokens.txt --title "A <title> & more" --picture h.$kind
        grep -q "h.$kind" stdout
    done
    python "w, h, rows = p.read_png('h.png')
count = p.colours(rows)
hidden, dark = (231, 232, 233), min(count, key=lambda c: sum(c) if count[c] > 3000 else 1000)
# 16 cells of 96 x 96 pixels, without the joints: 6 are hidden, and the first query has weight 1 on the first key.
assert abs(count[hidden] / 96 / 96 - 6) < 0.5, count[hidden] / 96 / 96
ys = [y for y in range(h) if dark in rows[y]]
xs = [x for x in range(w) if rows[ys[len(ys) // 2]][x] == dark]
first_hidden = min(x for x in range(w) if rows[ys[len(ys) // 2]][x] == hidden)
assert len(xs) >= 90 and min(xs) < first_hidden, (len(xs), min(xs), first_hidden)
p.check_svg('h.svg'); p.check_pdf('h.pdf')"
}
test_case "picture: PNG, SVG and PDF of a causal head" picture
picture_of() { # picture_of PATTERN ARGUMENT...
    local pattern=$1
    shift
    rm -f h.png
    exits 0 run "$@" --picture h.png
    grep -q -- "$pattern" stdout
    python "assert len(p.colours(p.read_png('h.png')[2])) > 10"
}
test_case "picture: labels that are no text" picture_of "4 x 4" q_head.npy k_head.npy k_head.npy --labels tokens_bad.txt
test_case "picture: more weights than cells" picture_of "the largest of 2 x 2 weights" long.npy long.npy long.npy --causal
test_case "picture: GQA head of a batch" picture_of "head 3, batch 1, 5 x 7" $qkv --head 3 --batch 1
test_case "picture: paged" picture_of "5 x 7" paged.safetensors --block-table :table --seqused-k :used --batch 1
test_case "picture: variable length" picture_of "5 x 7" q_packed.npy k_packed.npy v_packed.npy --cu-seqlens-q cu_q.npy \
    --cu-seqlens-k cu_k.npy --batch 1 --head 2
test_case "picture: every score option" picture_of "5 x 7" $qkv --bias bias_hides.npy --mask mask.npy --sink sink_none.npy \
    --alibi-slopes slopes0.npy --leftpad-k leftpad.npy --seqused-k used7.npy --window-left 3 --softcap 5
nan_picture() { # the first of two queries sees two of three keys; key 1 is NaN, so what is visible is NaN
    exits 0 run q_two.npy k_nan.npy k_nan.npy --causal --picture h.png
    python "count = p.colours(p.read_png('h.png')[2])
assert abs(count[(217, 38, 51)] / count[(231, 232, 233)] - 5) < 0.2, count"
}
test_case "picture: NaN and hidden weights" nan_picture
same_picture() {
    exits 0 run $qkv --head 2 --batch 1 --title x --picture a.png
    exits 0 run q_bhsd.npy k_bhsd.npy v_bhsd.npy --layout bhsd --head 2 --batch 1 --title x --picture b.png
    exits 0 run paged.safetensors --block-table :table --seqused-k :used --head 2 --batch 1 --title x --picture c.png
    python "a, b, c = (p.read_png(n)[2] for n in ('a.png', 'b.png', 'c.png'))
assert a[140:] == b[140:] and [r[:600] for r in a[140:]] == [r[:600] for r in c[140:]]"
}
test_case "picture: the same weights from every layout" same_picture

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
