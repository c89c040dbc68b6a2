#!/bin/sh
# The machine code of attention on matrix instructions, by the disassembler (cuobjdump, llvm-objdump) and the compilers' reports, for the
# code objects that were built: nothing is spilled, registers and shared memory leave room for two blocks on a multiprocessor, and the main
# loop has no move between kinds of registers, at most one load from shared memory for each matrix instruction (1.5 for heads of 32 columns, which
# share the others' masks and statistics, 1.2 on AMD for 80, the fifth part of which is loaded by itself) and eight branches (24 on AMD, where lanes
# without a chunk to move branch, too).
#   sh tests/gpu/attention_code.sh OBJECT...    prints the table of other objects, and checks nothing
set -eu
MEOPT_SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$MEOPT_SOURCE/tests/lib.sh"
. "$MEOPT_SOURCE/tests/gpu/machine_code.sh"

# Of each kernel the loop with the most matrix instructions: NAME MATRIX SHARED_LOADS BRANCHES MOVES INSTRUCTIONS
loops() {
    awk "$awk_hex"'
        function finish(    i, j, best, size) {
            best = -1
            for (i = 1; i <= n; i++) {
                if (target[i] == "" || !(target[i] in line) || line[target[i]] > i) continue
                j = line[target[i]] - 1
                if (matrix[i] - matrix[j] > best || (matrix[i] - matrix[j] == best && i - j < size)) {
                    best = matrix[i] - matrix[j]; size = i - j
                    found = name " " best " " loads[i] - loads[j] " " branches[i] - branches[j] " " moves[i] - moves[j] " " size
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
          moves[n] = moves[n - 1] + ($3 ~ /^(v_accvgpr|LDL|STL|scratch_|buffer_)/) }
        END { finish() }'
}
# OBJECT ARCH: NAME MATRIX SHARED_LOADS BRANCHES MOVES INSTRUCTIONS SPILLED SHARED REGISTERS BLOCKS
table() {
    instructions "$1" attention | loops | sort >"$work/loops"
    limits=$(multiprocessor "$2")
    [ ! -f "$1.kernels" ] || join "$work/loops" "$1.kernels" | awk -v limits="$limits" '{
        split(limits, most, " ")
        by_shared = int(most[1] / ($8 + most[2]))
        by_registers = int(most[3] / (int(($9 + 7) / 8) * 8))
        print $0, by_shared < by_registers ? by_shared : by_registers }'
}
count=0
for object in ${*:-"$MEOPT_BUILD"/kernels/meopt-*.co}; do
    arch=${object##*meopt-} && arch=${arch%.co}
    readable "$arch" || continue
    [ -f "$object" ] && LC_ALL=C grep -q attention_forward_bf16_64 "$object" || continue
    table "$object" "$arch" >"$work/table" 2>"$work/err" && [ -s "$work/table" ] || { echo "$arch: this disassembler does not read it" && continue; }
    echo "| $arch | registers | shared | blocks | spilled | matrix | loads / matrix | branches | moves | instructions |"
    awk '{ printf "| %s | %d | %d | %d | %d | %d | %.2f | %d | %d | %d |\n", $1, $9, $8, $10, $7, $2, $3 / $2, $4, $5, $6 }' "$work/table"
    count=$((count + 1))
    [ $# -gt 0 ] || awk -v arch="$arch" '{ amd = arch ~ /^gfx/; loads = $1 ~ /_32$/ ? 1.5 : amd && $1 ~ /_80$/ ? 1.2 : 1 }
        $7 > 0 || $10 < 2 || $3 > loads * $2 || $4 > (amd ? 24 : 8) || $5 > 0 { print; bad = 1 } END { exit bad }' "$work/table" >"$work/out" ||
        fail "$arch: kernels of attention exceed a limit (name, matrix instructions, loads, branches, moves, instructions, spilled, shared, registers, blocks)"
    [ $# -gt 0 ] || [ "$(wc -l <"$work/table")" -ge 15 ] || fail "$arch: only $(wc -l <"$work/table") kernels were found"
done
[ $count -gt 0 ] || { echo "no code objects with matrix instructions, or no disassembler" && exit 77; }
