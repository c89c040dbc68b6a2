# Makes run directories for the tests of the dashboard: dash_run DIRECTORY CARDS STEPS, a finished run with smooth figures.
dash_run() {
    mkdir -p "$1/ckpt/step-$3"
    printf 'model:\n  family: eva\nmodel_t:\n  weight: "/data/教师 teacher.pt"\n  arch: custom\nmodel_s:\n  weight: /data/student.pt\ntrain:\n  batch_size: 32\noptim:\n  use_meopt: true\n' >"$1/config.yaml"
    printf '{"version":1,"host":"node","pid":1,"started":1700000000.0,"device":"K100 AI","images":82783,"total_steps":%d,"student_parameters":1000000,"teacher_parameters":1000000,"family":"eva"}\n' "$3" >"$1/meta.json"
    printf '{"mem_bytes":16576937984,"peak_bytes":16576937984,"classes":{"weights":2021654528,"gradients":201326592,"optimizer":4043309056,"activations":6442450944,"teacher":2021654528,"workspace":1073741824,"comm":268435456,"data":504365056},"baseline":{"mem_bytes":32212254720,"peak_bytes":32212254720,"classes":{"weights":6065000000,"gradients":4043309056,"optimizer":8086618112,"activations":10442450944,"teacher":2021654528,"workspace":1073741824,"comm":0,"data":479480256}}}\n' >"$1/plan.json"
    printf '{"state":"done","step":%d,"total_steps":%d,"epoch":9,"pid":1,"host":"node","time":1700003600.0,"exit_code":0}\n' "$3" "$3" >"$1/state.json"
    printf '{"event":"started","time":1700000000.0,"step":0,"total_steps":%d}\n{"event":"checkpoint","time":1700001800.0,"step":%d}\n{"event":"done","time":1700003600.0,"step":%d}\n' "$3" $(($3 / 2)) "$3" >"$1/events.jsonl"
    printf 'a line of the worker\n一行\n' >"$1/worker.log"
    awk -v n="$3" -v cards="$2" 'BEGIN { # a line for each hundredth of the hour; with 2 cards, a third one is not of the run
        for (i = 0; i <= 100; i++) {
            printf "{\"time\":%.3f,\"step\":%d,\"cards\":[", 1700000000 + 36 * i, n * i / 100
            for (c = 0; c < cards + (cards == 2); c++)
                printf "%s{\"rank\":%s,\"name\":\"K100 AI\",\"pci\":\"0000:%02x:00.0\",\"mem_used_bytes\":%.0f,\"mem_total_bytes\":68719476736,\"busy_percent\":%d,\"temp_c\":%s,\"power_w\":%d}", c ? "," : "", c < cards ? c : "null", c + 3, c < cards ? 16576937984 + 4e8 + (c == 0 ? 2e10 : 0) : 3e10, c < cards ? 97 - c : 55, c == 1 ? "null" : 40 + 21 * (1 - exp(-i / 9)) + c % 3, 250 + 60 * (1 - exp(-i / 3)) + c
            print "]}"
        }
    }' >"$1/cards.jsonl"
    awk -v n="$3" -v cards="$2" 'BEGIN {
        for (i = 1; i <= n; i++) {
            loss = 0.02 + 1.5 * exp(-i / (n / 6)) + 0.02 * sin(i * 1.7)
            printf "{\"step\":%d,\"epoch\":%d,\"loss\":%.6f,\"cosine\":%.4f,\"lr\":%.6g,\"grad_norm\":%.4f,\"images_per_s\":%.2f,\"step_ms\":%.1f,\"data_wait_ms\":%.2f", i, i * 10 / n, loss, 1 - loss / 2, 1e-4 * (1 - i / (n + 1)), 0.5 + 0.1 * cos(i), 100 * cards + 5 * sin(i / 9), 1280 / 4 + 3 * cos(i), 1.5
            if (i == 1 || i % 10 == 0) {
                printf ",\"cards\":["
                for (c = 0; c < cards; c++)
                    printf "%s{\"mem_bytes\":%.0f,\"peak_bytes\":16576937984,\"classes\":{\"weights\":2021654528,\"gradients\":201326592,\"optimizer\":4043309056,\"activations\":6442450944,\"teacher\":2021654528,\"workspace\":1073741824,\"comm\":268435456,\"data\":504365056},\"rank\":%d,\"device\":\"K100 AI\",\"images_per_s\":%.1f}", c ? "," : "", 16576937984 - c * 1e8, c, 100 + c
                printf "]"
            }
            print "}"
        }
    }' >"$1/metrics.jsonl"
}
