#!/bin/sh
# The machine code of attention on matrix instructions, by the disassembler (cuobjdump, llvm-objdump) and the compilers' reports, for the
# code objects that were built: nothing is spilled, registers and shared memory leave room for two blocks on a multiprocessor, and the main
# loop has no move between kinds of registers, at most one load from shared memory for each matrix instruction (1.05 for heads of 32 columns on
# NVIDIA, 1.2 on AMD: they share the others' masks and statistics) and eight branches (five on NVIDIA).
# The last column predicts the share of the card's rate of matrix instructions, of the instructions of the main loop alone: SLOW-FAST. A scheduler
# issues an instruction a cycle (AMD: four cycles), and pipes take their time (`pipes`). FAST: all pipes work side by side, and the busiest one
# sets the time. SLOW: matrix instructions wait for the busiest of the others. Latencies and barriers are not in it.
#   sh tests/gpu/attention_code.sh OBJECT...    prints the table of other objects, and checks nothing
set -eu
MEOPT_SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$MEOPT_SOURCE/tests/lib.sh"
. "$MEOPT_SOURCE/tests/gpu/machine_code.sh"

# ARCH: a matrix instruction in cycles of a scheduler, from the card's published rate: 16 x 8 x 16 on NVIDIA (A100 2,048 FLOP per multiprocessor
# and cycle, RTX A6000 and GeForce 1,024 and 512, H100 4,096), 16 x 16 x 16 on AMD (MI210, K100 AI 1,024); of an fp32 instruction
pipes() {
    case $1 in
    gfx*) echo '32 4' ;;
    sm_80) echo '8 2' ;;
    sm_9? | sm_10?) echo '4 1' ;;
    *) echo '16 1' ;;
    esac
}
# ARCH: of each kernel the loop with the most matrix instructions: NAME MATRIX SHARED_LOADS BRANCHES MOVES INSTRUCTIONS SLOW FAST
loops() {
    awk -v pipes="$(pipes "$1")" -v amd="${1%%[0-9_]*}" "$awk_hex"'
        # Cycles of the pipes: issue, arithmetic, exp2 and its like, shared memory (128 bytes a cycle for four schedulers)
        function cycles(op) {
            issue = 1; arithmetic = special = shared = 0
            if (amd == "gfx") {
                issue = 4
                if (op ~ /^v_(exp|log|rcp|rsq|sqrt)_/) special = 16
                else if (op ~ /^v_/ && op !~ /^v_(mfma|mmac)/) arithmetic = 4
                if (op ~ /^ds_/) shared = op ~ /b128|2_b64/ ? 32 : op ~ /b64|2_b32/ ? 16 : 8
                return
            }
            if (op ~ /^MUFU/) special = 8
            else if (op ~ /^(FFMA|FMUL|FADD|IMAD)/) arithmetic = fp32
            else if (op ~ /^(IADD|LOP|SEL|FSEL|FSETP|ISETP|FMNMX|IMNMX|SHF|LEA|PRMT|F2FP|VIADD|P2R|PLOP)/) arithmetic = 2
            if (op ~ /^(LDSM.*\.4|(LDS|STS).*\.128|LDGSTS.*\.128)/) shared = 16
            else if (op ~ /^(LDSM.*\.2|(LDS|STS).*\.64)/) shared = 8
            else if (op ~ /^(LDS|STS|SHFL)/) shared = 4
        }
        function most(a, b) { return a > b ? a : b }
        BEGIN { split(pipes, rate, " "); fp32 = rate[2] }
        function finish(    i, j, best, size) {
            best = -1
            for (i = 1; i <= n; i++) {
                if (target[i] == "" || !(target[i] in line) || line[target[i]] > i) continue
                j = line[target[i]] - 1
                if (matrix[i] - matrix[j] > best || (matrix[i] - matrix[j] == best && i - j < size)) {
                    best = matrix[i] - matrix[j]; size = i - j
                    busy = rate[1] * best
                    others = most(most(most(issues[i] - issues[j], arithmetics[i] - arithmetics[j]), specials[i] - specials[j]), shareds[i] - shareds[j])
                    found = name " " best " " loads[i] - loads[j] " " branches[i] - branches[j] " " moves[i] - moves[j] " " size \
                        " " (best ? busy / (busy + others) : 0) " " (best ? busy / most(busy, others) : 0)
                }
            }
            if (best > 0) print found
            split("", line); split("", target); n = 0
        }
        $1 != name { finish(); name = $1 }
        { n++; line[hex($2)] = n; target[n] = $4 == "-" ? "" : hex($4)
          matrix[n] = matrix[n - 1] + ($3 ~ /^(HMMA|v_mfma|v_mmac)/)
          loads[n] = loads[n - 1] + ($3 ~ /^(LDS|LDSM|ds_read|ds_load)/)
          branches[n] = branches[n - 1] + ($3 ~ /^(BRA|s_c?branch)/)
          moves[n] = moves[n - 1] + ($3 ~ /^(v_accvgpr|LDL|STL|scratch_|buffer_)/)
          cycles($3)
          issues[n] = issues[n - 1] + issue; arithmetics[n] = arithmetics[n - 1] + arithmetic
          specials[n] = specials[n - 1] + special; shareds[n] = shareds[n - 1] + shared }
        END { finish() }'
}
# OBJECT ARCH: NAME MATRIX SHARED_LOADS BRANCHES MOVES INSTRUCTIONS SLOW FAST SPILLED SHARED REGISTERS BLOCKS
table() {
    instructions "$1" attention | loops "$2" | sort >"$work/loops"
    limits=$(multiprocessor "$2")
    [ ! -f "$1.kernels" ] || join "$work/loops" "$1.kernels" | awk -v limits="$limits" '{
        split(limits, most, " ")
        by_shared = int(most[1] / ($10 + most[2]))
        by_registers = int(most[3] / (int(($11 + 7) / 8) * 8))
        print $0, by_shared < by_registers ? by_shared : by_registers }'
}
count=0
for object in ${*:-"$MEOPT_BUILD"/kernels/meopt-*.co}; do
    arch=${object##*meopt-} && arch=${arch%.co}
    readable "$arch" || continue
    [ -f "$object" ] && { [ $# -gt 0 ] || LC_ALL=C grep -q attention_forward_bf16_64 "$object"; } || continue
    table "$object" "$arch" >"$work/table" 2>"$work/err" && [ -s "$work/table" ] || { echo "$arch: this disassembler finds no matrix instructions" && continue; }
    echo "| $arch | registers | shared | blocks | spilled | matrix | loads / matrix | branches | moves | instructions | of the card |"
    awk '{ printf "| %s | %d | %d | %d | %d | %d | %.2f | %d | %d | %d | %.2f-%.2f |\n", $1, $11, $10, $12, $9, $2, $3 / $2, $4, $5, $6, $7, $8 }' "$work/table"
    count=$((count + 1))
    [ $# -gt 0 ] || awk -v arch="$arch" '{ amd = arch ~ /^gfx/; loads = $1 !~ /_32$/ ? 1 : amd ? 1.2 : 1.05 }
        $9 > 0 || $12 < 2 || $3 > loads * $2 || $4 > (amd ? 8 : 5) || $5 > 0 { print; bad = 1 } END { exit bad }' "$work/table" >"$work/out" ||
        fail "$arch: kernels of attention exceed a limit (name, matrix instructions, loads, branches, moves, instructions, slow, fast, spilled, shared, registers, blocks)"
    [ $# -gt 0 ] || [ "$(wc -l <"$work/table")" -ge 15 ] || fail "$arch: only $(wc -l <"$work/table") kernels were found"
done
[ $count -gt 0 ] || { echo "no code objects with matrix instructions, or no disassembler" && exit 77; }
