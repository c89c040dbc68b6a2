#!/bin/sh
# The layers of the source: a module includes only the modules and single headers of its row in core/README.md, and itself.
set -eu
SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
# "MODULE INCLUDED..." of each row "| [MODULE](...) | contents | INCLUDED... |"
rooms=$(awk -F'|' '$2 ~ /^ \[/ && NF == 5 { name = $2; gsub(/^ \[|\].*/, "", name); print name $4 }' "$SOURCE/core/README.md")

# "ROOM INCLUDED-ROOM FILE:LINE INCLUDED" for every #include "..." below the directory $1.
includes() {
    (cd "$1" && grep -rnE --include='*.c' --include='*.h' --include='*.hip' '^ *# *include "' core cli fetch kernels) |
        sed -E 's/^([^:]+):([0-9]+): *# *include "([^"]+)".*/\1 \3 \1:\2/' |
        awk 'function room(path) {
                 if (path == "core/meopt.h") return path
                 if (path ~ /^core\/[a-z]+\//) { split(path, part, "/"); return part[1] "/" part[2] }
                 split(path, part, "/"); return part[1]
             }
             { print room($1), room($2), $3, $2 }'
}

# The arrows below $1 that no row allows, one a line.
broken() {
    includes "$1" | awk -v rooms="$rooms" '
        BEGIN {
            count = split(rooms, row, "\n")
            for (i = 1; i <= count; i++) {
                n = split(row[i], word, " ")
                if (n) known[word[1]] = 1
                for (k = 2; k <= n; k++) allowed[word[1] " " word[k]] = 1
            }
        }
        !($1 in known) { print $3 ": " $1 " is a module without a row in tests/tools/layers.sh"; next }
        $1 != $2 && !(($1 " " $2) in allowed) && !(($1 " " $4) in allowed) && !($2 ~ /^core/ && ($1 " core") in allowed) { print $3 ": " $1 " must not include " $2 }'
}

found=$(broken "$SOURCE")
if [ -n "$found" ]; then
    echo "$found"
    exit 1
fi
count=$(includes "$SOURCE" | wc -l)
[ "$count" -gt 300 ] || { echo "only $count includes found: the search is broken"; exit 1; }

# Planted includes are found: each against an arrow of the picture.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plant() { # room of the file, what it includes
    rm -rf "$work/tree"
    mkdir -p "$work/tree/core" "$work/tree/cli" "$work/tree/fetch" "$work/tree/kernels/cpu" "$work/tree/$1"
    printf '#include "%s"\n' "$2" >"$work/tree/$1/planted.c"
    [ -n "$(broken "$work/tree")" ] || { echo "a planted include of $2 in $1 was not found"; exit 1; }
}
plant core/optim core/device_gpu/gpu.h
plant core/optim core/step/trainer.h
plant core/run core/nn/nn.h
plant core/run core/meopt.h
plant fetch core/config/config.h
plant core/train cli/supervisor/worker.h
plant core/config core/device/device.h
plant kernels/cpu core/device/device.h
plant kernels/cpu core/base/error.h
plant kernels/cpu tests/gpu/emulate.h
plant core/unheard core/base/error.h
# Only core/device uses the headers of card drivers, not core/optim, core/nn and core/step.
cards=$(cd "$SOURCE" && grep -nE '#include "core/device/(gpu|driver)' -r core/optim core/model core/nn core/step core/train core/run core/comm || true)
[ -z "$cards" ] || { echo "only core/device may include the headers of card drivers:"; echo "$cards"; exit 1; }
# What a processor can do is asked in one file: a compiler's own answer knows the vendors of its time alone.
asks=$(cd "$SOURCE" && grep -rlE '__builtin_cpu_[a-z]+ *\(|<cpuid\.h>|xgetbv' core cli fetch kernels)
[ "$asks" = core/base/cpu.c ] || { echo "asked in more than core/base/cpu.c:"; echo "$asks"; exit 1; }
echo "$count includes, all allowed"
