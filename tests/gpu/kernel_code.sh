#!/bin/sh
# The machine code of the kernels besides attention's (attention_code.sh), for the code objects that were built:
# - Arithmetic in double is where `doubles` states it, and nowhere else: cards for workstations have 1/64 of the rate of fp32.
# - No registers are moved to accumulators and back (AMD), none are spilled, and blocks have room on a multiprocessor (`blocks`).
# - Elementwise kernels load and store 16 bytes at a time, with at most the instructions per element of `elements`, with every option of a kernel.
#   sh tests/gpu/kernel_code.sh OBJECT...    prints the table of other objects, and checks nothing
set -eu
MEOPT_SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$MEOPT_SOURCE/tests/lib.sh"
. "$MEOPT_SOURCE/tests/gpu/machine_code.sh"

# PATTERN WHERE: kernels with arithmetic in double, in loops too, or once per row or launch. Its reasons: sums of squares, norms and losses are
# double by contract (kernels/operations.h), those of the optimizer have the CPU's bits.
doubles='^(add_values|add_squares|sum_squares_(f32|bf16)|distill_rows|logit_merge)$ loops
^optim_(step_(f32|bf16|8bit|4bit|any)|squares|total|trust|factor_(rows|columns|means))$ loops
^(logit_sums|logit_gradient_(f32|bf16)|cross_entropy_rows|optim_clip|optim_normalize_(f32|bf16))$ once'
# PATTERN SM GFX BLACKWELL: instructions per element. For Blackwell (sm_100, sm_120) compilers of CUDA 12.9 and 13.0 take more registers, and unroll more.
elements='^cast_(f32_f32|bf16_f32)$ 4 6 13
^cast_(f32|bf16)_bf16$ 10 11 10
^residual_forward_ 34 24 34
^(gelu|tanh|quick_gelu|gelu_tanh)_forward_ 46 58 46
^swiglu_forward_ 46 46 46
^sum_ranks_f32$ 52 9 71
^sum_ranks_bf16$ 38 6 38'
# PATTERN SM GFX BLACKWELL: blocks of 256 threads that find registers and shared memory
blocks='^optim_step_any$ 1 3 1
^(optim_step_|layernorm_backward_|swiglu_backward_) 2 3 2
^(gemm_|optim_squares$|logit_merge$) 3 5 2
. 4 6 2'

# Of each kernel: NAME INSTRUCTIONS DOUBLE DOUBLE_IN_LOOPS MOVES WIDE_LOOP; the last is the longest loop around a store of 16 bytes, without those
# around it
figures() {
    awk "$awk_hex"'
        function finish(    i, k, j, within, size, wide) {
            split("", within)
            for (i = 1; i <= n; i++) {
                if (target[i] == "" || !(target[i] in line) || line[target[i]] > i) continue
                for (k = line[target[i]]; k <= i; k++)
                    if (!(k in within) || i - line[target[i]] + 1 < within[k]) within[k] = i - line[target[i]] + 1
            }
            double_in = 0; wide = 0
            for (i = 1; i <= n; i++) {
                if (i in within && op[i] ~ double) double_in++
                if (i in within && op[i] ~ /^(STG\.E\.128|(global|flat|buffer)_store_dwordx4)/ && within[i] > wide) wide = within[i]
            }
            if (n) print name, n, doubles, double_in, moves, wide
            split("", line); split("", target); split("", op); n = doubles = moves = 0
        }
        BEGIN { double = "^(DADD|DMUL|DFMA|DSETP|MUFU\\..*64H|F2F\\..*F64|[IF]2[IF]\\..*F64|v_.*_f64)" }
        $1 != name { finish(); name = $1 }
        { n++; line[hex($2)] = n; op[n] = $3; target[n] = $4 == "-" ? "" : hex($4)
          doubles += $3 ~ double; moves += $3 ~ /^v_accvgpr/ }
        END { finish() }'
}
# OBJECT ARCH: NAME INSTRUCTIONS DOUBLE DOUBLE_IN_LOOPS MOVES PER_ELEMENT SPILLED SHARED REGISTERS BLOCKS
table() {
    instructions "$1" '([b-z]|add)' | figures | sort >"$work/figures"
    join "$work/figures" "$1.kernels" | awk -v limits="$(multiprocessor "$2")" '{
        split(limits, most, " ")
        each = $1 ~ /bf16$/ ? 8 : 4
        by_shared = int(most[1] / ($8 + most[2]))
        by_registers = int(most[3] / (int(($9 + 7) / 8) * 8) / (most[2] ? 2 : 1)) # NVIDIA: 8 waves are two of four
        if (by_registers > 8) by_registers = 8
        $6 = sprintf("%.1f", $6 / each)
        print $0, by_shared < by_registers ? by_shared : by_registers }'
}
count=0
for object in ${*:-"$MEOPT_BUILD"/kernels/meopt-*.co}; do
    arch=${object##*meopt-} && arch=${arch%.co}
    readable "$arch" && [ -f "$object" ] && [ -s "$object.kernels" ] || continue
    table "$object" "$arch" >"$work/table" 2>"$work/err" && [ -s "$work/table" ] || { echo "$arch: this disassembler does not read it" && continue; }
    echo "| $arch | instructions | double | in loops | moves | per element | registers | shared | blocks |"
    awk '$1 !~ /^attention/ { printf "| %s | %d | %d | %d | %d | %s | %d | %d | %d |\n", $1, $2, $3, $4, $5, ($6 > 0 ? $6 : ""), $9, $8, $10 }' "$work/table"
    count=$((count + 1))
    [ $# -eq 0 ] || continue
    awk -v doubles="$doubles" -v elements="$elements" -v blocks="$blocks" -v column="$(case $arch in gfx*) echo 3 ;; sm_1??) echo 4 ;; *) echo 2 ;; esac)" '
        function row(rows, at,    i, list, part) { # of the first row whose pattern is the kernel
            for (i = 1; i <= split(rows, list, "\n"); i++)
                if (split(list[i], part, " ") && $1 ~ part[1]) return part[at]
            return ""
        }
        function bad(what) { print $0 ": " what; failed = 1 }
        $1 ~ /^attention/ { next }
        { of_doubles = row(doubles, 2); of_elements = row(elements, column); of_blocks = row(blocks, column); kernels++ }
        $3 > 0 && of_doubles == "" || $4 > 0 && of_doubles != "loops" { bad("arithmetic in double") }
        $5 > 0 { bad("moves to accumulators") }
        $7 > 0 { bad("registers are spilled") }
        of_elements != "" && $6 == 0 { bad("no stores of 16 bytes") }
        of_elements != "" && $6 > of_elements { bad("at most " of_elements " instructions per element are known") }
        $10 < of_blocks { bad(of_blocks " blocks found room") }
        kernels && of_elements != "" { wide++ }
        END { if (kernels < 80 || wide < 18) { print kernels + 0 " kernels, " wide + 0 " of elements"; failed = 1 } exit failed }' "$work/table" >"$work/out" || {
        cat "$work/out" >&2
        fail "$arch: kernels exceed a limit (name, instructions, double, in loops, moves, per element, spilled, shared, registers, blocks)"
    }
done
[ $count -gt 0 ] || { echo "no code objects, or no disassembler" && exit 77; }
