# Sourced by tests of the kernels' machine code, after tests/lib.sh: instructions by the disassembler, what a multiprocessor has.
cuobjdump=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump \
    "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}"/meopt-tests/*/lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump 2>/dev/null | head -n 1)
objdump=$(command -v llvm-objdump || ls /opt/rocm/llvm/bin/llvm-objdump 2>/dev/null | head -n 1) || true

# ARCH: whether there is a disassembler for it
readable() {
    case $1 in
    gfx*) [ "$objdump" ] || { echo "$1: no llvm-objdump" && return 1; } ;;
    sm_*) [ "$cuobjdump" ] || { echo "$1: no cuobjdump" && return 1; } ;;
    *) return 1 ;;
    esac
}
# OBJECT PATTERN: FUNCTION ADDRESS INSTRUCTION TARGET, one line per instruction of the kernels whose names begin so; target in hexadecimal, of branches
instructions() {
    case ${1##*/} in
    *gfx*) # the last ELF file of the bundle is the card's
        tail -c "+$(($(LC_ALL=C grep -abo 'ELF' "$1" | tail -n 1 | cut -d: -f1)))" "$1" >"$work/elf"
        "$objdump" -d "$work/elf" | awk -v pattern="^$2" '/^[0-9a-f]+ <.*>:$/ { base = $1; name = substr($2, 2, length($2) - 3) }
            name ~ pattern && match($0, /\/\/ [0-9A-F]+:/) {
                at = substr($0, RSTART + 3, RLENGTH - 4)
                print name, at, $1, $1 ~ /^s_c?branch/ && match($0, /\+0x[0-9a-f]+>/) ? base "+" substr($0, RSTART + 3, RLENGTH - 4) : "-" }' ;;
    *) "$cuobjdump" -sass "$1" | awk -v pattern="^$2" '/Function :/ { name = $3 }
        name ~ pattern && match($0, /\/\*[0-9a-f]+\*\/ +[^;]*;/) {
            split(substr($0, RSTART, RLENGTH), word, " +")
            op = word[2] ~ /^@/ ? word[3] : word[2]
            print name, substr(word[1], 3, length(word[1]) - 4), op, op ~ /^BRA/ && match($0, /0x[0-9a-f]+ ?;/) ? substr($0, RSTART + 2, RLENGTH - 3) : "-" }' ;;
    esac
}
# ARCH: shared memory of a multiprocessor, what each block takes in addition, and registers of a lane that all its blocks of four waves share
multiprocessor() {
    case $1 in
    gfx*) echo '65536 0 512' ;;
    sm_80 | sm_87) echo '167936 1024 512' ;;
    sm_90 | sm_10?) echo '233472 1024 512' ;;
    *) echo '102400 1024 512' ;;
    esac
}
# A function of awk: the number of a text in hexadecimal, "BASE+OFFSET" too
awk_hex='function hex(s,    i, x, part) {
    if (split(s, part, "+") == 2) return hex(part[1]) + hex(part[2])
    s = tolower(s)
    for (i = 1; i <= length(s); i++) x = 16 * x + index("0123456789abcdef", substr(s, i, 1)) - 1
    return x
}'
