#!/bin/sh
# Every key of the table is read by code outside core/config: c->train.steps, config.train.steps, and for a tower's also
# tower->width where a struct config_tower is given, images->mean where a struct config_images is, and loss->type of a struct config_loss. Rows of FACTS are read by one loop. Comments, texts and assignments are no reading.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work

# The reads of a tree: "train.steps" from code without comments and texts, "tower->width" where a tower is taken.
code() { # tree
    (cd "$1" && find core cli -name '*.[ch]' ! -path 'core/config/*' -print0 | LC_ALL=C xargs -0 sed -s 's/"[^"]*"//g; $s/$/\n\f/') | LC_ALL=C awk '
        function end_of_file() {
            if (text ~ /struct config_(tower|images|loss)/) towers = towers text
            printf "%s", text
            text = ""
        }
        /^\f/ { end_of_file(); inside = 0; next }
        {
            while (length($0)) {
                end = inside ? index($0, "*/") : index($0, "/*")
                if (!inside) text = text (end ? substr($0, 1, end - 1) : $0)
                if (!end) break
                $0 = substr($0, end + 2)
                inside = !inside
            }
            text = text "\n"
        }
        END { printf "%s", towers >FILE }' FILE="$dir/towers" >"$dir/all"
    end='([^a-z_0-9 =]| +[^ =]| *==|$)' # of the name, with no assignment after it
    { sed 's/\[[0-9a-z]*\]//g' "$dir/all" | LC_ALL=C grep -oE "(->|[a-z]\\.)[a-z_]+\\.[a-z_0-9]+$end"; LC_ALL=C grep -oE "(tower|images|loss)->[a-z_0-9]+$end" "$dir/towers"
        ! grep -q 'fact_rows\[f\]\.name' "$dir/towers" || sed -n 's/^ *F([A-Z_]*, *\([a-z_]*\),.*/tower->\1/p' "$1/core/model/facts.h"; } |
        sed -E 's/^(->|[a-z]\.)//; s/([a-z_]+(\.|->)[a-z_0-9]+).*/\1/' | sort -u >"$dir/reads"
}
unread() { # keys on stdin
    while read -r key; do
        case $key in
        train.precision) # is what the towers' dtype is where they say nothing, and these are read
            [ "$("$MEOPT" config list "$MEOPT_SOURCE/configs/dinov2.yaml" train.precision=fp32 | grep -c '^model_[ts].dtype = fp32')" = 2 ] && continue ;;
        optim.warmup_ratio) # is read with the steps
            grep -q 'config_warmup(' "$dir/all" && continue ;;
        model_[ts].*) set -- "tower->${key#*.}" "images->${key#*.}" ;;
        loss.chunk) grep -q 'c->loss_chunk' "$dir/all" && continue ;;
        loss.*) set -- "loss->${key#*.}" ;;
        data.* | data_s.*) set -- "images->${key#*.}" ;;
        *) set -- "$key" ;;
        esac
        grep -qxF -e "$key" -e "$1" -e "${2:-$1}" "$dir/reads" || echo "$key"
    done
}
"$MEOPT" config list | sed -n 's/^  \([a-z_]*\.[a-z_0-9]*\) .*/\1/p' >"$dir/keys"
[ "$(wc -l <"$dir/keys")" -ge 70 ] || fail "the table has too few keys: $(wc -l <"$dir/keys")"
code "$MEOPT_SOURCE"
found=$(unread <"$dir/keys")
[ -z "$found" ] || fail "read by nothing outside core/config: $found"

# What the walk has to find: a key that no one names, and keys whose reading was taken away.
[ "$(echo train.planted | unread)" = train.planted ] || fail "an unread key was not found"
mkdir "$dir/tree"
cp -r "$MEOPT_SOURCE/core" "$MEOPT_SOURCE/cli" "$dir/tree"
find "$dir/tree" -name '*.c' -exec sed -i 's,c->optim\.nesterov,0 /* c->optim.nesterov */,; s/tower->pos_grid/0/g; s/tower->dtype ==/0 ==/
    s,^.*c->optim\.beta1;,c->optim.beta1 = 0.9;,; s/config_cards(c/count("c->device.cards"/' {} +
sed -i '/F(POS_GRID,/d' "$dir/tree/core/model/facts.h"
code "$dir/tree"
found=$(unread <"$dir/keys" | tr '\n' ' ')
[ "$found" = "model_t.pos_grid model_t.dtype model_s.pos_grid model_s.dtype optim.beta1 optim.nesterov " ] || fail "of six unread keys the walk names: $found"
