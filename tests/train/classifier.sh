# For tests of classifiers: pictures of the sample in directories of classes, and runs of ./vit.yaml.
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
logs='out log'
arrange() { # COUNT DIRECTORY CLASS...: moves the next pictures to DIRECTORY/CLASS, the classes in turn
    count=$1 to=$2
    shift 2
    find "$work/sample/COCO2014" -name '*.jpg' | sort | head -"$count" | while read -r image; do
        mkdir -p "$to/$1"
        mv "$image" "$to/$1/"
        class=$1
        shift
        set -- "$@" "$class"
    done
}
train() { # NAME CODE ARGUMENT...
    name=$1 want=$2
    shift 2
    exits "$want" "$MEOPT" train vit.yaml --run-dir . --name "$name" --no-dashboard "$@" >out 2>log || fail "$name: exit $code, expected $want"
}
last() { find "$1/ckpt" -name 'step-*' | sort | tail -n 1; } # RUN: its last checkpoint
same() {                                                     # A B: weights and the metrics of each step, and states that one rank wrote
    cmp "$(last "$1")/model.safetensors" "$(last "$2")/model.safetensors" || fail "$2: other weights than $1"
    if [ -e "$(last "$1")/optimizer.bin" ] && [ -e "$(last "$2")/optimizer.bin" ]; then
        cmp "$(last "$1")/optimizer.bin" "$(last "$2")/optimizer.bin" || fail "$2: other states than $1"
    fi
    for run in "$1" "$2"; do sed 's/,"images_per_s".*//' "$run/metrics.jsonl" >"$run.metrics"; done
    cmp "$1.metrics" "$2.metrics" || fail "$2: other metrics than $1"
}
write_text() { # train.txt and val.txt of 9,000 and 700 bytes: a walk through a dozen words
    awk 'BEGIN { n = split("the light and the darkness were upon the face of the waters", word, " ")
        for (i = 0; i < 2000; i++) printf "%s ", word[(i * i + int(i / 7)) % n + 1] }' >text
    head -c 9000 text >train.txt
    tail -c +9001 text | head -c 700 >val.txt
}
