#!/bin/sh
# Prints what a run of ctest took longest for, which instruction sets it tried, and which tests it left out, by reason: summary.sh BUILD LOG,
# where LOG is what ctest has printed. tests/run.sh ends with it.
set -eu
awk '
    function result(line, name) { # "  7/90 Test #12: NAME ....   Passed    0.31 sec"
        name = line
        sub(/^[^:]*: /, "", name)
        sub(/ .*/, "", name)
        seconds[name] = $(NF - 1)
        if (line ~ /\*\*\*Skipped/) skipped[name] = 1
        else if (line ~ / Passed /) passed++
        else failed++
    }
    FNR == 1 { file++ }
    file == 1 && /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { result($0) }
    file == 2 && /^[0-9]+\/[0-9]+ Testing: / { name = $3 }
    file == 2 && /^Output:$/ { inside = 1; getline; next }
    file == 2 && /^<end of output>$/ { inside = 0 }
    file == 2 && inside && /^instruction set [a-z0-9_]+: / {
        set = $3
        where = $0
        sub(/^[^:]*: /, "", where)
        sub(/:$/, "", set)
        if (!(set in known)) order[++sets] = set
        known[set] = 1
        if (where != "not here" && index(tried[where], " " set " ") == 0) tried[where] = tried[where] " " set " "
        if (where != "not here") ran[set] = 1
    }
    file == 2 && inside && NF && (name in skipped) && !(name in sure) {
        reason[name] = $0
        if (sub(/^skipped: /, "", reason[name])) sure[name] = 1
    }
    END {
        print "longest tests, in seconds:"
        for (i = 0; i < 20; i++) {
            most = -1
            for (name in seconds) if (seconds[name] + 0 > most && !(name in shown)) { most = seconds[name] + 0; longest = name }
            if (most < 0) break
            shown[longest] = 1
            printf "%s%8.2f  %-24s", i % 4 ? "" : "\n  " , most, longest
        }
        print "\n"
        for (where in tried) { gsub(/  /, " ", tried[where]); print "instruction sets " where ":" tried[where] }
        for (i = 1; i <= sets; i++) if (!(order[i] in ran)) none = none " " order[i]
        if (sets) print "instruction sets not tried:" (none ? none : " none")
        for (name in skipped) {
            count++
            why = name in reason ? reason[name] : "no reason given"
            if (length(why) > 160) why = substr(why, 1, 160) "..."
            members[why] = members[why] " " name
            number[why]++
        }
        for (why in members) printf "skipped, %d: %s\n   %s\n", number[why], why, members[why]
        printf "%d passed, %d failed, %d skipped\n", passed, failed, count
    }' "$2" "$1/Testing/Temporary/LastTest.log"
