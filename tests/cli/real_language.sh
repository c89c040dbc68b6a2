#!/bin/sh
# Language models that meopt exports load strictly in transformers' classes, and these compute what their definition says of
# meopt's own file: GPT-2, BERT, Llama with scaled positions, Mistral, Qwen2 with a window, Qwen3.
# Needs a Python with torch, transformers and safetensors (python.sh).
set -eu
set -- torch transformers safetensors
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2
mkdir "$work/exported"
"$MEOPT_BUILD/tests/test_language_export" "$work/exported" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
"$python" "$MEOPT_SOURCE/tests/tools/load_language.py" "$work/exported" >"$work/out" 2>&1 || fail "$(tail -20 "$work/out")"
[ "$(grep -c 'largest difference' "$work/out")" -ge 10 ] || fail "fewer models than written: $(cat "$work/out")"
# the other way round: models of transformers, evaluated, trained and exported
mkdir "$work/models"
(cd "$work/models" && "$python" "$MEOPT_SOURCE/tests/tools/train_language.py") >"$work/out" 2>&1 || fail "$(tail -20 "$work/out")"
[ "$(grep -c 'export equal' "$work/out")" = 8 ] || fail "fewer models than made: $(cat "$work/out")"
# each member of config.json, and others that some class has, changed one at a time
mkdir "$work/members"
(cd "$work/members" && "$python" "$MEOPT_SOURCE/tests/tools/config_members.py") >"$work/out" 2>&1 || fail "$(grep -v Loading "$work/out" | tail -20)"
# each causal language model of the library
mkdir "$work/decoders"
(cd "$work/decoders" && "$python" "$MEOPT_SOURCE/tests/tools/decoders.py") >"$work/out" 2>&1 || fail "$(tail -20 "$work/out")"
# BERT and its kin, in and out
mkdir "$work/encoders"
(cd "$work/encoders" && "$python" "$MEOPT_SOURCE/tests/tools/encoders.py") >"$work/out" 2>&1 || fail "$(tail -20 "$work/out")"
[ "$(grep -c 'export equal' "$work/out")" = 8 ] || fail "fewer encoders than made: $(cat "$work/out")"
