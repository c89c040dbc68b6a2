#!/bin/sh
# glibc_2_17.sh CC DIR: the libraries of glibc in DIR as the linker sees them on CentOS 7: a program linked with -LDIR runs with glibc 2.17
# and later. Each has the symbols of this machine's library that 2.17 has, in the version of 2.17, and no code. libglibc_2_17.a has the
# functions that came later (glibc_2_17.c).
set -eu
cc=$1 dir=$2
mkdir -p "$dir"
libc=$($cc -print-file-name=libc.so.6)
for soname in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1; do
    name=$dir/${soname%%.*} file=$($cc -print-file-name=$soname) loader=
    [ $soname != libc.so.6 ] || loader=$($cc -print-file-name="$(readelf -d "$libc" | sed -n 's/.*NEEDED.*\[\(ld-.*\)\]/\1/p')") # __tls_get_addr
    # Lines "type address size symbol version binding": the newest version up to 2.17 of each symbol. Data at one address are one object (environ, weak,
    # and __environ): the linker copies both to a program that uses one.
    LC_ALL=C readelf --dyn-syms -W "$file" ${loader:+"$loader"} | awk '
        $7 ~ /^[0-9]+$/ && $8 ~ /@GLIBC_2\.[0-9.]+$/ {
            split($8, part, "@+GLIBC_2\\."); split(part[2], number, ".")
            if (number[1] > 17 || $4 == "TLS") next
            order = number[1] * 1000 + number[2]
            if (!(part[1] in best) || order >= best[part[1]]) {
                best[part[1]] = order
                line[part[1]] = ($4 == "OBJECT" ? "data " : "code ") $2 " " $3 " " part[1] " 2." part[2] " " ($5 == "WEAK" ? "weak" : "globl")
            }
        }
        END { for (symbol in line) print line[symbol] }' | sort >"$name.symbols"
    awk '
        $1 == "code" { printf ".%s %s\n.type %s,@function\n%s: .byte 0\n", $6, $4, $4, $4 }
        $1 == "data" && $2 != address {
            if (size) printf ".zero %d\n", size
            print ".data\n.balign 64"
            address = $2
            size = 0
        }
        $1 == "data" {
            if ($3 + 0 > size) size = $3 + 0
            printf ".%s %s\n.type %s,@object\n.size %s,%d\n%s:\n", $6, $4, $4, $4, $3, $4
        }
        END { if (size) printf ".zero %d\n", size; print ".section .note.GNU-stack" }' "$name.symbols" >"$name.s"
    sort -k5,5V -k4,4 "$name.symbols" | awk '
        $5 != version { if (version) print "};"; print "GLIBC_" $5 " {"; version = $5 }
        { print "  " $4 ";" }
        END { print version ? "};" : "" }' >"$name.map"
    $cc -shared -nostdlib -Wl,-soname,$soname -Wl,--version-script="$name.map" "$name.s" -o "$name.so"
    rm -f "$name.symbols" "$name.s" "$name.map"
done
for part in glibc_2_17 glibc_2_17_start; do
    $cc -O2 -fPIC -c "$(dirname "$0")/$part.c" -o "$dir/$part.o"
done
ar rcD "$dir/libglibc_2_17.a" "$dir/glibc_2_17.o" "$dir/glibc_2_17_start.o"
rm -f "$dir"/glibc_2_17*.o
