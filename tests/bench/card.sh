#!/bin/sh
# run.sh of the card kit (`cmake --build build --target card-kit`): checks and measures MEOpt on a machine with a card and its driver.
#   sh run.sh [--device cuda:0|hip:0] [--time SECONDS] [--parts 'NAME...']      NAME: of a part or a kind, patterns as of the shell
# In this order: tests, trainings whose losses and bytes are compared, memory of workloads compared with the plan, speed with PyTorch
# (where a Python, $MEOPT_PYTHON or python3, has it), compute-sanitizer. The first and the last run in parallel, the others alone. It ends
# within --time (default 470). Results are in $OUT (default: results in the kit): card.json, table.txt, logs/. `tests/bench/card_results.py
# card.json` makes them a section of RESULTS.md.
# Exit status: 0, 1 if a part failed or was stopped at its limit, 2 for a wrong option, 6 without a usable card.
set -uf
kit=$(cd "$(dirname "$0")" && pwd)
cd "$kit" || exit 1
meopt=$kit/bin/meopt
# KIND NAME LIMIT ...: limits in seconds; an emulated card has three times as long
rows() {
    cat <<'END'
card card 60
test ops 120
test queues 40
test optim_card 90
test optim_offload 60
test optim_streams 60
test lm_loss 60
test gemm_trials 30
test towers 90
test tower_slots 90
test streamed 90
test plan 90
test equal 120
test golden_towers 90
test golden_language 90
test golden_bert 60
test golden_classify 60
test golden_lora 60
test golden_cache 60
test golden_distill 60
test golden_cross_entropy 60
train quickstart 90 quickstart
train quickstart_dinov2 90 quickstart_dinov2
train quickstart_fp32 90 quickstart_dinov2 train.precision=fp32
train digits 90 digits
train bytes 90 bytes
load dinov2 75 dinov2 32
load eva_clip 75 eva_clip 32
load qwen3_0_6b 75 qwen3_0_6b 4
load open_clip 75 open_clip 32
load dinov2_kinds 60 dinov2 32 --profile
load qwen3_0_6b_kinds 60 qwen3_0_6b 4 --profile
load dinov2_no_graphs 60 dinov2 32 MEOPT_GRAPHS=none
speed torch 130
speed optimizer 40
speed speedup 40
speed operations 30
speed doctor 60
sanitize memcheck_attention 50 memcheck ops attention*
sanitize racecheck_attention 50 racecheck ops attention*
sanitize synccheck_attention 50 synccheck ops attention*
sanitize memcheck_gemm 50 memcheck ops *gemm*
sanitize racecheck_rows 50 racecheck ops *norm*
sanitize initcheck_towers 50 initcheck towers
sanitize memcheck_optim 50 memcheck optim_card
sanitize racecheck_optim 50 racecheck optim_card
END
}

number() { # KEY < JSON: the first value
    grep -o "\"$1\": *-\{0,1\}[0-9][0-9.eE+-]*" | head -n 1 | sed 's/.*: *//'
}
calculate() { awk "BEGIN { printf \"%.${2:-0}f\", $1 }"; } # EXPRESSION [DIGITS]
quoted() { # TEXT as a JSON string; what is not ASCII is left out
    printf '"%s"' "$(printf '%s' "$1" | LC_ALL=C tr '\n\t' '  ' | LC_ALL=C tr -cd '\40-\176' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}
left() { echo $((KIT_END - $(date +%s))); }

# ---- parts: each prints its words, and writes its figures (a JSON value) to $KIT_LOGS/NAME.json and a few of them to NAME.few. Exit 77 and the
# last line say why a part is skipped.

part_test() {
    "$kit/tests/$1" && code=0 || code=$?
    printf '{"code": %d}' $code >"$KIT_LOGS/$1.json"
    return $code
}

# Trains on the CPU, the card, the card again, and the card without graphs: losses close to the CPU's, and the card's bytes the same thrice.
part_train() { # NAME CONFIG KEY=VALUE...
    name=$1 config=$2 runs=$KIT_WORK/$1
    shift 2
    steps=20
    [ -z "$KIT_EMULATED" ] || steps=2
    [ -z "$KIT_EMULATED" ] || set -- "$@" train.batch_size=2
    [ -z "$KIT_EMULATED" ] || [ "$config" != bytes ] || set -- "$@" model.context=16 model.depth=1
    for run in cpu card again plain; do
        graphs=on type=$KIT_TYPE
        [ $run != plain ] || graphs=none
        [ $run != cpu ] || type=cpu
        MEOPT_GRAPHS=$graphs "$meopt" train "$kit/configs/$config.yaml" "device.type=$type" "device.cards=$KIT_CARD" train.steps=$steps \
            train.log_every=1 --no-dashboard --run-dir "$runs" --name $run "$@" || { echo "the training '$run' ends with $?"; return 1; }
    done
    for run in cpu card; do sed -n 's/.*"loss": *\([-0-9.eE+]*\).*/\1/p' "$runs/$run/metrics.jsonl" >"$runs/$run.losses"; done
    tolerance=1e-2
    case " $* " in *" train.precision=fp32 "*) tolerance=2e-4 ;; esac
    worst=$(paste "$runs/cpu.losses" "$runs/card.losses" | awk -v steps=$steps '
        NF != 2 { exit }
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= worst)) worst = d; n++ }
        END { if (n == steps) printf "%.2e", worst; else print "none" }')
    files=$(cd "$runs/card/ckpt" && find . -name '*.safetensors' -o -name optimizer.bin | sort)
    for run in again plain; do
        same=$([ "$files" ] && echo true || echo false)
        for file in $files; do cmp "$runs/card/ckpt/$file" "$runs/$run/ckpt/$file" || same=false; done
        eval "$run=$same"
    done
    rm -rf "$runs"
    [ "$worst" != none ] || { echo "losses of $steps steps are missing"; return 1; }
    # shellcheck disable=SC2154 # again and plain: eval
    printf '{"steps": %d, "loss_difference": %s, "tolerance": %s, "again_same_bytes": %s, "without_graphs_same_bytes": %s}' \
        $steps "$worst" $tolerance "$again" "$plain" >"$KIT_LOGS/$name.json"
    echo "loss $worst of $tolerance" >"$KIT_LOGS/$name.few"
    [ "$again" = true ] || { echo "a second training has other bytes"; return 1; }
    [ "$plain" = true ] || { echo "a training without graphs has other bytes"; return 1; }
    awk "BEGIN { exit !($worst <= $tolerance) }" || { echo "the losses differ from the CPU's by $worst, at most $tolerance is right"; return 1; }
}

# Small enough for an emulated card.
small() { # NAME
    case $1 in
    qwen*) echo model.arch=custom model.family=llama model.weight= model.init=random model.vocabulary=80 model.context=16 model.width=32 model.depth=1 \
        model.heads=4 model.hidden=64 ;;
    *) echo model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.depth=1 model_s.depth=1 model_t.patch=14 model_s.patch=14 ;;
    esac
    case $1 in
    dinov2*) echo model_t.width=192 model_t.hidden=128 model_t.ffn=swiglu model_t.pos_grid=5 model_s.width=128 model_s.hidden=512 model_s.pos_grid=5 ;;
    eva*) echo model_t.width=176 model_t.hidden=352 model_t.out=64 model_s.width=88 model_s.hidden=320 model_s.out=64 ;;
    open*) echo model_t.width=176 model_t.hidden=352 model_t.out=64 model_s.width=160 model_s.hidden=320 model_s.out=64 ;;
    esac
}

# Throughput with random weights; the card's memory as planned, as measured, and as the system sees it.
part_load() { # NAME CONFIG BATCH [OPTION | MEOPT_VARIABLE=VALUE]
    name=$1 config=$kit/configs/$2.yaml batch=$3 option='' steps=8 peak=''
    case ${4:-} in MEOPT_*) export "${4?}" ;; *) option=${4:-} ;; esac
    set -- "device.type=$KIT_TYPE" "device.cards=$KIT_CARD"
    if [ "$KIT_EMULATED" ]; then
        batch=2 steps=2 peak=--no-peak
        # shellcheck disable=SC2046
        set -- "$@" $(small "$name")
    fi
    fits=$("$meopt" plan "$config" --card-memory "$(calculate "$KIT_FREE * 0.95")" --json "$@" "train.batch_size=$batch" | number largest_micro_batch_images)
    [ "${fits:-$batch}" -ge 1 ] || { echo "not one sample fits in $KIT_FREE bytes"; return 77; }
    [ "${fits:-$batch}" -ge "$batch" ] || batch=$fits
    set -- "$@" "train.batch_size=$batch" "train.micro_batch=$batch"
    "$meopt" plan "$config" --json "$@" >"$KIT_LOGS/$name.plan" || return 1
    seen=$(wc -l <"$KIT_LOGS/smi")
    # shellcheck disable=SC2086
    "$meopt" bench train "$config" --random-weights --steps $steps --json $peak $option "$@" >"$KIT_LOGS/$name.bench" || return 1
    smi=$(tail -n "+$((seen + 1))" "$KIT_LOGS/smi" | sort -n | tail -n 1 | sed 's/[, ].*//')
    planned=$(number peak_bytes <"$KIT_LOGS/$name.plan") measured=$(number peak_bytes <"$KIT_LOGS/$name.bench")
    step=$(number step_ms <"$KIT_LOGS/$name.bench")
    printf '{"batch": %d, "planned_bytes": %s, "system_mib": %s, "bench": %s}' "$batch" "$planned" "${smi:-null}" \
        "$(tail -n 1 "$KIT_LOGS/$name.bench")" >"$KIT_LOGS/$name.json"
    echo "$batch $step $(number model_gflops <"$KIT_LOGS/$name.bench") $planned $measured ${smi:--}" >"$KIT_LOGS/$name.few"
    [ "$measured" -le "$planned" ] || { echo "$measured bytes are used, $planned were planned"; return 1; }
}

part_speed() {
    params=$(awk "BEGIN { p = $KIT_FREE / 64; print p > 5e8 ? 500000000 : int(p) }") repeat=5
    [ -z "$KIT_EMULATED" ] || params=65536 repeat=1
    case $1 in
    torch)
        [ -z "$KIT_EMULATED" ] || { echo "no PyTorch on an emulated card"; return 77; }
        "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "$python has no torch that sees a card"; return 77; }
        "$python" "$kit/python/train_torch.py" $(($(left) < 110 ? $(left) - 15 : 95)) >"$KIT_LOGS/torch.lines"
        code=$?
        echo "[$(grep '^{' "$KIT_LOGS/torch.lines" | paste -s -d , -)]" >"$KIT_LOGS/torch.json"
        ! grep '"meopt_torch_same_bits": false' "$KIT_LOGS/torch.lines" || { echo "meopt.torch on the card does not have the bits of the CPU"; return 1; }
        return $code ;;
    optimizer)
        "$meopt" bench optim --device "$KIT_DEVICE" --params "$params" --json >"$KIT_LOGS/optimizer.json" || return
        awk -F'[:,]' '/"triad_gb_per_s"/ && !t { t = $2 } /"gb_per_s"/ && $2 > best { best = $2 } END { printf "best %.0f of %.0f GB/s\n", best, t }' \
            "$KIT_LOGS/optimizer.json" >"$KIT_LOGS/optimizer.few" ;;
    speedup)
        "$meopt" bench speedup --device "$KIT_DEVICE" --params "$params" --repeat $repeat --json >"$KIT_LOGS/speedup.json" || return
        awk -F'[:,]' '/"on": "card"/ { card = 1 } /"speedup"/ && card { printf "%.1fx ", $2; card = 0 }' "$KIT_LOGS/speedup.json" >"$KIT_LOGS/speedup.few" ;;
    operations)
        # one operation of an emulated card
        "$kit/tests/ops" --time ${KIT_EMULATED:+sum_squares} >"$KIT_LOGS/operations.txt" || return
        echo "$(grep -c . "$KIT_LOGS/operations.txt") lines in logs/operations.txt" >"$KIT_LOGS/operations.few" ;;
    doctor)
        set -- configs/eva_clip.yaml
        # shellcheck disable=SC2046
        [ -z "$KIT_EMULATED" ] || set -- "$@" train.batch_size=2 $(small eva_clip)
        "$meopt" doctor "$@" --device "$KIT_DEVICE" --json >"$KIT_LOGS/doctor.json" || return
        awk -F'[:,]' '/"tflop_per_s"/ && $2 > best { best = $2 } END { printf "best GEMM or attention %.3g TFLOP/s\n", best }' "$KIT_LOGS/doctor.json" \
            >"$KIT_LOGS/doctor.few" ;;
    esac
}

part_sanitize() { # NAME TOOL TEST [FILTER]
    [ "$KIT_TYPE" = cuda ] || { echo "compute-sanitizer is for cards of NVIDIA"; return 77; }
    [ -z "$KIT_EMULATED" ] || { echo "no compute-sanitizer for an emulated card"; return 77; }
    command -v compute-sanitizer || { echo "no compute-sanitizer in PATH or /usr/local/cuda"; return 77; }
    tool=$2 test=$kit/tests/$3
    export MEOPT_TEST_SHORT=1 KIT_TEST="$3" # whatever it makes of the link's name
    shift 3
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" "$@"
}

# ---- running a part

record() { # KIND NAME STATUS SECONDS REASON
    printf '%s\t%s\t%s\t%s\t%s\n' "$@" >"$KIT_WORK/$2.row"
}
run_part() { # KIND NAME LIMIT WORD...
    kind=$1 name=$2 limit=$3
    shift 3
    [ -z "$KIT_EMULATED" ] || limit=$((limit * 3))
    rest=$(left)
    [ "$limit" -le "$rest" ] || limit=$rest
    if [ "$limit" -lt 2 ]; then
        record "$kind" "$name" skipped 0 "no time left"
        return
    fi
    begin=$(date +%s)
    timeout -k 2 "$limit" sh "$kit/run.sh" --do "$kind" "$name" "$@" >"$KIT_LOGS/$name.txt" 2>&1 </dev/null &
    echo $! >"$KIT_WORK/$name.pid"
    wait $! && code=0 || code=$?
    rm -f "$KIT_WORK/$name.pid"
    took=$(($(date +%s) - begin))
    last=$(grep . "$KIT_LOGS/$name.txt" | tail -n 1)
    case $code in
    0) record "$kind" "$name" passed $took '' ;;
    77) record "$kind" "$name" skipped $took "$last" ;;
    130 | 143) record "$kind" "$name" skipped $took interrupted ;;
    124 | 137) record "$kind" "$name" timeout $took "stopped after $limit s" ;;
    *)
        why=$(grep -E '^\[  FAILED  \]|ERROR: |^meopt: |not found|No such' "$KIT_LOGS/$name.txt" | head -n 1)
        record "$kind" "$name" failed $took "exit $code: ${why:-$last}" ;;
    esac
}
chosen() { # KIND NAME
    [ "$KIT_PARTS" ] || return 0
    for pattern in $KIT_PARTS; do
        # shellcheck disable=SC2254
        case $1 in $pattern) return 0 ;; esac
        # shellcheck disable=SC2254
        case $2 in $pattern) return 0 ;; esac
    done
    return 1
}
run_kind() { # KIND JOBS: the chosen parts of a kind
    rows | grep "^$1 " | while read -r kind name rest; do
        chosen "$kind" "$name" && echo "$name"
    done | xargs -r -n 1 -P "$2" sh "$kit/run.sh" --part "$1" &
    jobs=$!
    wait $jobs
}

# ---- the reports

write_json() {
    {
        printf '{"meopt": %s,\n "device": "%s", "emulated": %s, "began": "%s", "seconds": %d, "limit_seconds": %d,\n' "$(quoted "$version")" \
            "$KIT_DEVICE" "$([ "$KIT_EMULATED" ] && echo true || echo false)" "$began" $(($(date +%s) - start)) "$seconds"
        printf ' "host": {"kernel": %s, "processor": %s, "cores": %d},\n' "$(quoted "$(uname -sr)")" \
            "$(quoted "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)")" "$cores"
        printf ' "code_objects": [%s],\n' "$(find "$kit/lib/meopt" -name 'meopt-*.co' | sed 's/.*meopt-\(.*\)\.co/"\1"/' | sort | paste -s -d , -)"
        printf ' "card": {"description": %s, "arch": "%s", "pci": "%s", "driver": %s, "memory_bytes": %s, "free_bytes": %s,\n' "$(quoted "$card")" "$arch" \
            "$pci" "$(quoted "$driver")" "${memory:-null}" "${KIT_FREE:-null}"
        printf '  "system": %s, "throttling": %s},\n "parts": [' "$(quoted "$(cat "$KIT_LOGS/smi.facts" 2>/dev/null)")" "$(quoted "$throttling")"
        comma='' before=''
        rows | while read -r kind name rest; do
            IFS="$tab" read -r kind name status took why <"$KIT_WORK/$name.row"
            [ "$why" = "$before" ] || { reason=$(quoted "$why") before=$why; }
            [ "$why" ] || reason=null before=
            figures=null
            [ ! -s "$KIT_LOGS/$name.json" ] || [ "$status" = timeout ] || figures=$(cat "$KIT_LOGS/$name.json")
            case $figures in null | *'}' | *']') ;; *) figures=null ;; esac # of a program that crashed
            printf '%s\n  {"kind": "%s", "name": "%s", "status": "%s", "seconds": %d, "reason": %s, "figures": %s}' "$comma" "$kind" "$name" "$status" \
                "$took" "$reason" "$figures"
            comma=,
        done
        printf '],\n "counts": {"passed": %d, "failed": %d, "timeout": %d, "skipped": %d}}\n' "$(count passed)" "$(count failed)" "$(count timeout)" \
            "$(count skipped)"
    } >"$out/card.json.part" && mv "$out/card.json.part" "$out/card.json"
}
count() { find "$KIT_WORK" -name '*.row' -exec cut -f 3 {} + | grep -cx "$1"; }

# The time of PyTorch per sample in the same workload, the best of its forms: milliseconds, or nothing.
torch_sample_ms() { # NAME
    [ -s "$KIT_LOGS/torch.lines" ] || return 0
    grep "\"workload\": \"$1\"" "$KIT_LOGS/torch.lines" | sed 's/.*"batch": \([0-9]*\).*"step_ms": \([0-9.]*\).*/\1 \2/' |
        awk '{ print $2 / $1 }' | sort -g | head -n 1
}
table() {
    echo "MEOpt $version on $card; $driver; $(($(date +%s) - start)) of $seconds s"
    [ -z "$KIT_EMULATED" ] || echo "AN EMULATED CARD: no time or speed means anything"
    [ ! -s "$KIT_LOGS/smi.facts" ] || cat "$KIT_LOGS/smi.facts"
    [ -z "$throttling" ] || echo "throttling: $throttling"
    for kind in test sanitize; do
        rows | grep "^$kind " | while read -r kind name rest; do cat "$KIT_WORK/$name.row"; done |
            awk -F"$tab" -v kind=$kind '{ n[$3]++; if ($4 > most) { most = $4; which = $2 } }
                END { printf "%s: %d passed, %d failed, %d timeout, %d skipped; longest %s %d s\n", kind, n["passed"], n["failed"], n["timeout"], n["skipped"], which, most }'
    done
    before=-
    rows | while read -r kind name rest; do
        IFS="$tab" read -r kind name status took why <"$KIT_WORK/$name.row"
        few=$(cat "$KIT_LOGS/$name.few" 2>/dev/null)
        case $kind-$status in
        *-skipped)
            case $why in "not chosen"* | "$before") continue ;; esac # one row for one reason
            before=$why ;;
        card-passed | test-passed | sanitize-passed) continue ;;
        esac
        case $kind-$status in
        load-passed)
            # shellcheck disable=SC2086
            set -- $few
            theirs=$(torch_sample_ms "$name")
            few="$(calculate "$1 * 1000 / $2" 1)/s, $(calculate "${3:-0} / 1000" 1) TFLOP/s, MiB: planned $(calculate "$4 / 1048576")"
            few="$few, used $(calculate "$5 / 1048576"), system $6"
            [ -z "$theirs" ] || few="$few; $(calculate "$theirs * $1 / $2" 2) times as fast as PyTorch" ;;
        esac
        printf '%-8s %-20s %-8s %4d s  %s\n' "$kind" "$name" "$status" "$took" "${few:+$few }$why"
    done
    echo "$(count passed) passed, $(count failed) failed, $(count timeout) timeout, $(count skipped) skipped: $out"
}
finish() { # the parts that are not finished were interrupted
    find "$KIT_WORK" -name '*.pid' -exec cat {} + | while read -r pid; do kill "$pid" 2>/dev/null; done
    [ -z "${sampler:-}" ] || kill "$sampler" 2>/dev/null
    rows | while read -r kind name rest; do
        [ -e "$KIT_WORK/$name.row" ] || record "$kind" "$name" skipped 0 "$unfinished"
    done
    throttling=$(grep -o '0x[0-9a-fA-F]*' "$KIT_LOGS/smi" 2>/dev/null | grep -v '0x0*[01]$' | sort | uniq -c | tr -s ' \n' ' ')
    write_json
    table | cut -c 1-150 | tee "$out/table.txt"
    failed=$(($(count failed) + $(count timeout)))
    rm -rf "$KIT_WORK"
    [ "$usable" ] || exit 6
    [ "$failed" = 0 ] || exit 1
    exit "${1:-0}"
}

# The first list of fields that this nvidia-smi knows; names change between drivers.
known_fields() { # FIELDS...
    for fields; do
        # shellcheck disable=SC2086
        ! nvidia-smi $which --query-gpu="$fields" --format=csv,noheader >/dev/null 2>&1 || { echo "$fields" && return; }
    done
}
# The card's memory as the system has it, one line each quarter of a second or second: MiB first.
watch_card() {
    if [ "$KIT_TYPE" = cuda ]; then
        now=memory.used,power.draw,clocks.sm,temperature.gpu
        # shellcheck disable=SC2086
        exec nvidia-smi $which --query-gpu="$(known_fields $now,clocks_event_reasons.active $now,clocks_throttle_reasons.active $now memory.used)" \
            --format=csv,noheader,nounits -lms 250
    fi
    used=/sys/bus/pci/devices/$pci/mem_info_vram_used
    while [ -r "$used" ]; do
        echo $(($(cat "$used") >> 20))
        sleep 0.25
    done
    while [ "$smi" ]; do
        "$smi" -d "$KIT_CARD" --showmeminfo vram --csv | awk -F, '$3 + 0 > 0 { print int($3 / 1048576); exit }'
        sleep 1
    done
}
describe_card() {
    if [ "$KIT_TYPE" = cuda ]; then
        facts=name,driver_version,pstate,power.limit,clocks.max.sm,ecc.mode.current,ecc.errors.uncorrected.volatile.total,mig.mode.current
        # shellcheck disable=SC2086
        nvidia-smi $which -q >"$KIT_LOGS/smi.all"
        # shellcheck disable=SC2086
        nvidia-smi $which --query-gpu="$(known_fields $facts,pcie.link.gen.current,pcie.link.width.current name,driver_version)" --format=csv,noheader
        # shellcheck disable=SC2086
        nvidia-smi $which --query-compute-apps=pid,used_memory --format=csv,noheader | sed 's/^/another process: /'
        dmesg 2>/dev/null | grep 'NVRM: Xid' | tail -n 1
    elif [ "$smi" ]; then
        "$smi" -a >"$KIT_LOGS/smi.all" 2>&1
        "$smi" --showdriverversion 2>/dev/null | grep -i version | head -n 1
    fi
}

# ---- main

tab=$(printf '\t')
case ${1:-} in
--do) # KIND NAME WORD...: the part itself
    part=part_$2
    shift 2
    "$part" "$@"
    exit
    ;;
--part) # KIND NAME: the row of a part
    words=$(rows | grep "^$2 $3 ")
    # shellcheck disable=SC2086
    run_part $words
    exit
    ;;
esac
KIT_DEVICE='' KIT_PARTS='' seconds=470
while [ $# -gt 0 ]; do
    case $1=${2:-} in
    --device=cuda:[0-9]* | --device=hip:[0-9]*) KIT_DEVICE=$2 ;;
    --time=*[!0-9]* | --time=) echo "--time SECONDS" >&2 && exit 2 ;;
    --time=*) seconds=$2 ;;
    --parts=?*) KIT_PARTS=$2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$kit/run.sh" >&2 && exit 2 ;;
    esac
    shift 2
done
start=$(date +%s) began=$(date -u +%Y-%m-%dT%H:%M:%SZ) cores=$(env -u OMP_NUM_THREADS nproc)
KIT_END=$((start + seconds - 5))
out=${OUT:-$kit/results}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
KIT_LOGS=$out/logs
rm -rf "$KIT_LOGS" "$out/card.json" "$out/table.txt"
mkdir -p "$KIT_LOGS" && KIT_WORK=$(mktemp -d) || exit 1
python=${MEOPT_PYTHON:-python3} usable='' card='' arch='' pci='' driver='' memory='' throttling='' unfinished="not reached"
export KIT_DEVICE KIT_PARTS KIT_END KIT_LOGS KIT_WORK python
PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
export PATH MEOPT_SOURCE="$kit" MEOPT_KERNELS="$kit/lib/meopt" MEOPT_OPTIM_LIBRARY="$kit/lib/libmeopt-optim.so" PYTHONPATH="$kit/python" LC_ALL=C
unset MEOPT_FIXTURES MEOPT_LONG LANGUAGE
# Libraries of GEMMs: those of PyTorch where the system has none.
lt=
[ "${MEOPT_CUBLASLT_LIBRARY:-}" ] ||
    lt=$({ echo /usr/local/cuda/lib64/ && echo /opt && "$python" -c 'import sys; print(*(p for p in sys.path if "packages" in p), sep="\n")'; } 2>/dev/null |
        while read -r place; do find "$place" -maxdepth 9 -name 'libcublasLt.so.1[0-9]' 2>/dev/null; done | head -n 1)
[ -z "$lt" ] || export MEOPT_CUBLASLT_LIBRARY="$lt" MEOPT_CUBLAS_LIBRARY="${lt%/*}/libcublas${lt##*cublasLt}"

version=$("$meopt" version 2>"$KIT_LOGS/card.txt" | head -n 1 | sed 's/^meopt *//')
for device in ${KIT_DEVICE:-cuda:0 hip:0}; do
    KIT_DEVICE=$device
    timeout -k 2 60 "$meopt" doctor --quick --device "$device" --json >"$KIT_LOGS/card.json" 2>>"$KIT_LOGS/card.txt" && usable=yes && break
done
KIT_TYPE=${KIT_DEVICE%%:*} KIT_CARD=${KIT_DEVICE##*:} KIT_FREE=$(number free_bytes <"$KIT_LOGS/card.json") KIT_EMULATED=
KIT_FREE=$(calculate "${KIT_FREE:-0}") memory=$(calculate "$(number memory_bytes <"$KIT_LOGS/card.json" | grep . || echo 0)")
card=$(sed -n "s/.*\"detail\": \"$KIT_DEVICE: device: \(.*\)\",*$/\1/p" "$KIT_LOGS/card.json") driver=$(sed -n "s/.*\"detail\": \"$KIT_DEVICE: driver: \(.*\)\",*$/\1/p" "$KIT_LOGS/card.json")
arch=$(echo "$card" | sed -n 's/.*, \(sm_[0-9]*\|gfx[0-9a-f]*\),.*/\1/p') pci=$(echo "$card" | sed -n 's/.*, PCI \([0-9a-fA-F:.]*\).*/\1/p')
case $card in *Emulated*) KIT_EMULATED=yes ;; esac
export KIT_TYPE KIT_CARD KIT_FREE KIT_EMULATED MEOPT_TEST_DEVICE="$KIT_DEVICE"
trap 'unfinished=interrupted; kill "${jobs:-}" 2>/dev/null; finish 1' INT TERM
took=$(($(date +%s) - start))
if [ -z "$usable" ]; then
    record card card failed $took "$(grep -E '^meopt: |not found' "$KIT_LOGS/card.txt" | tail -n 1)"
    unfinished="no usable card" card=${card:-no usable card}
    finish
fi
record card card passed $took ''
rows | while read -r kind name rest; do
    [ "$kind" = card ] || chosen "$kind" "$name" || record "$kind" "$name" skipped 0 "not chosen by --parts"
done
: >"$KIT_LOGS/smi"
which="-i $pci" # the order of the cards is another than CUDA's
# shellcheck disable=SC2086
nvidia-smi $which -L >/dev/null 2>&1 || which=
smi=
for tool in rocm-smi hy-smi /opt/rocm/bin/rocm-smi /opt/dtk/bin/rocm-smi /opt/hyhal/bin/hy-smi; do smi=${smi:-$(command -v $tool)}; done
if [ -z "$KIT_EMULATED" ]; then
    describe_card >"$KIT_LOGS/smi.facts" 2>"$KIT_LOGS/smi.errors"
    watch_card >"$KIT_LOGS/smi" 2>>"$KIT_LOGS/smi.errors" &
    sampler=$!
fi
# Few threads each where parts share the cores.
side=$((cores > 3 ? cores / 2 : 2))
OMP_NUM_THREADS=2 && export OMP_NUM_THREADS
run_kind test $side
run_kind train $side
unset OMP_NUM_THREADS
run_kind load 1
run_kind speed 1
OMP_NUM_THREADS=2 && export OMP_NUM_THREADS
run_kind sanitize $side
finish
