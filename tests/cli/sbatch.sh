#!/bin/sh
# The job script of `meopt sbatch`: its resource requests, its syntax in several shells, and any file name in it. How it handles each end of
# a run, with a simulated srun and scontrol. Does not require Slurm.
set -eu
command -v bash >/dev/null || { echo "no bash, which runs job scripts"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cd "$dir"
expect() { exits "$@" >out 2>err || fail "exit $code, expected $*"; } # code command...
has() { grep -qxF -e "$1" "${2:-out}" || fail "no line '$1'"; }
"$MEOPT" config new eva_clip >/dev/null
here=$(pwd -P)

expect 0 "$MEOPT" sbatch eva_clip.yaml --nodes 2 --cards 4 --gres dcu:K100-PCIE-64GB-LS --cpus 16 --partition ksai --time 1-12:00:00 \
    --warn 600 --module compiler/dtk/25.04 --module mpi/hpcx --run-dir /shared/runs train.steps=100
for line in '#!/bin/bash' '#SBATCH --nodes=2' '#SBATCH --ntasks-per-node=4' '#SBATCH --gres=dcu:K100-PCIE-64GB-LS:4' '#SBATCH --cpus-per-task=16' \
    '#SBATCH --partition=ksai' '#SBATCH --time=1-12:00:00' '#SBATCH --signal=B:USR1@600' '#SBATCH --requeue' '#SBATCH --open-mode=append' \
    "module load 'compiler/dtk/25.04' || exit 1" "module load 'mpi/hpcx' || exit 1" 'export HSA_FORCE_FINE_GRAIN_PCIE=1' '#SBATCH --job-name=eva_clip'; do
    has "$line"
done
grep -q -- "train --resume-if-exists --no-dashboard --run-dir '/shared/runs' --name 'eva_clip' -- '$here/eva_clip.yaml' 'train.steps=100'$" out || fail "the command"
[ "$(grep -n -v '^#' out | head -1 | cut -d: -f1)" -gt "$(grep -n '^#SBATCH' out | tail -1 | cut -d: -f1)" ] || fail "sbatch reads no option after the first command"
! grep -q '^#SBATCH.* #' out || fail "sbatch takes a comment after an option for a part of it"
# in another language the comments and messages alone differ
commands() { sed -e '/^#SBATCH/!s/\(^\| \)#.*//' -e 's/echo .*//' "$1"; }
for way in '' '--array 0-3 train.seed=%a' '--mem 200G optim.lr=1.0e-4,2.0e-4' 'device.type=cpu'; do
    # shellcheck disable=SC2086
    "$MEOPT" sbatch eva_clip.yaml $way >english && env -u LANG LC_ALL=C.UTF-8 LANGUAGE=zh_CN "$MEOPT" sbatch eva_clip.yaml $way >chinese || fail "sbatch $way"
    bash -n chinese || fail "bash cannot read the Chinese script of $way"
    commands english >one && commands chinese | cmp - one >&2 || fail "the language changes the commands of $way"
done
expect 0 "$MEOPT" sbatch eva_clip.yaml device.cards=0,1,2
has '#SBATCH --ntasks-per-node=3'
has '#SBATCH --time=24:00:00'
expect 0 "$MEOPT" sbatch eva_clip.yaml device.type=cuda
has '#SBATCH --gres=gpu:1'
for cards in '' '--cards 4'; do
    # shellcheck disable=SC2086
    expect 0 "$MEOPT" sbatch eva_clip.yaml --gres dcu:4 $cards data.val=images
    has '#SBATCH --gres=dcu:4'
    has '#SBATCH --ntasks-per-node=4'
    grep -q "'data.val=$here/images'" out || fail "a path of this directory: $(grep data.val out)"
done
expect 2 "$MEOPT" sbatch eva_clip.yaml --gres dcu:4 --cards 2
expect 0 "$MEOPT" sbatch eva_clip.yaml --qos high --constraint 'k100&ib' --exclude 'a[1-3],b4'
for line in --qos=high '--constraint=k100&ib' '--exclude=a[1-3],b4'; do has "#SBATCH $line"; done
expect 2 "$MEOPT" sbatch eva_clip.yaml --qos 'a&b'
expect 0 "$MEOPT" sbatch eva_clip.yaml device.type=cpu
! grep -q 'gres' out || fail "a processor is no card"
expect 0 "$MEOPT" sbatch eva_clip.yaml -o job.sh
[ -x job.sh ] && [ ! -s out ] || fail "-o"

expect 7 "$MEOPT" sbatch eva_clip.yaml optim.lrr=1
expect 7 "$MEOPT" sbatch nothing.yaml
expect 2 "$MEOPT" sbatch eva_clip.yaml --name 'a b'
expect 2 "$MEOPT" sbatch eva_clip.yaml --name ../a
expect 2 "$MEOPT" sbatch eva_clip.yaml --partition 'x
#SBATCH --uid=0'
expect 2 "$MEOPT" sbatch eva_clip.yaml --account ''

for limit in 30 30:10 2:30:00 1-12 1-12:30 1-12:00:00 UNLIMITED; do expect 0 "$MEOPT" sbatch eva_clip.yaml --time $limit; done
for limit in banana 1- -5 1:2:3:4 1-2:3:4:5 12h 1:00:x : 0 3 180; do
    case $limit in 180) warn=10800 ;; *) warn=180 ;; esac
    expect 2 "$MEOPT" sbatch eva_clip.yaml --time=$limit --warn $warn
done
for memory in 200G 4096 1t; do expect 0 "$MEOPT" sbatch eva_clip.yaml --mem $memory; done
for memory in lots 1.5G G 200GiB; do expect 2 "$MEOPT" sbatch eva_clip.yaml --mem $memory; done
for array in 0-4 7 1,3,7 0-15:4 0-15:4%2 1,3-5%3; do expect 0 "$MEOPT" sbatch eva_clip.yaml --array $array train.seed=%a; done
for array in a 0- 0-4-5 1,,2 0-4%2%3 %2 0:4; do expect 2 "$MEOPT" sbatch eva_clip.yaml --array $array train.seed=%a; done
expect 2 "$MEOPT" sbatch eva_clip.yaml --array 0-4
expect 7 "$MEOPT" sbatch eva_clip.yaml --array 0-4 optim.name=%a
expect 0 "$MEOPT" sbatch eva_clip.yaml --array 0-4%2 --run-dir /r train.seed=%a optim.lr=1.0e-%a
has '#SBATCH --array=0-4%2'
has '#SBATCH --output=slurm-%x-%A_%a.log'
has "#MEOPT task=* run=/r/eva_clip config=$here/eva_clip.yaml override=train.seed=%25a override=optim.lr=1.0e-%25a"
grep -qF -- "--name 'eva_clip'-\"\$SLURM_ARRAY_TASK_ID\" -- '$here/eva_clip.yaml' 'train.seed='\"\$SLURM_ARRAY_TASK_ID\"'' 'optim.lr=1.0e-'\"\$SLURM_ARRAY_TASK_ID\"''" out || fail "the command of an array"
bash -n out || fail "bash does not read the script of an array"

# Several values of a key: an array with a run for each combination, whose name has the values.
expect 0 "$MEOPT" sbatch eva_clip.yaml --name sweep --run-dir /r optim.lr=1.0e-5,2.0e-5,5.0e-5 train.seed=1,2 train.steps=9 -o sweep.sh
has '#SBATCH --array=0-5' sweep.sh
has "#MEOPT task=3 run=/r/sweep-lr=2.0e-5-seed=2 config=$here/eva_clip.yaml override=train.steps=9 value=optim.lr=2.0e-5 value=train.seed=2" sweep.sh
bash -n sweep.sh || fail "bash does not read the script of a sweep"
if command -v shellcheck >/dev/null; then shellcheck -s bash -e SC2016 sweep.sh >out 2>err || fail "shellcheck of a sweep"; fi
mkdir sweeps
printf '#!/bin/bash\nprintf "[%%s]" "${@:10}" >>"$PLAY/sweeps/runs"\necho >>"$PLAY/sweeps/runs"\n' >sweeps/srun
chmod +x sweeps/srun
for task in 0 1 2 3 4 5; do PATH="$here/sweeps:$PATH" PLAY=$here SLURM_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task bash sweep.sh >out 2>err || fail "task $task"; done
for lr in 1.0e-5 2.0e-5 5.0e-5; do
    for seed in 1 2; do echo "[sweep-lr=$lr-seed=$seed][--][$here/eva_clip.yaml][train.steps=9][optim.lr=$lr][train.seed=$seed]"; done
done >wanted
diff wanted sweeps/runs >&2 || fail "the runs of a sweep"
code=0
PATH="$here/sweeps:$PATH" PLAY=$here SLURM_JOB_ID=7 SLURM_ARRAY_TASK_ID=6 bash sweep.sh >out 2>err || code=$?
[ $code = 2 ] || fail "a task without a run: $code"
expect 0 "$MEOPT" sbatch eva_clip.yaml optim.lr=1.0e-5,2.0e-5 --array %1
has '#SBATCH --array=0-1%1'
expect 0 "$MEOPT" sbatch eva_clip.yaml device.cards=0,1 # a list is one value
! grep -q -- --array out || fail "a list is taken for several values"
expect 2 "$MEOPT" sbatch eva_clip.yaml optim.lr=1.0e-5,2.0e-5 --array 0-1
expect 7 "$MEOPT" sbatch eva_clip.yaml optim.lr=1.0e-5,fast
expect 7 "$MEOPT" sbatch eva_clip.yaml optim.lr=1.0e-5,
many=$(seq -s, 40)
expect 2 "$MEOPT" sbatch eva_clip.yaml train.seed="$many" train.steps="$many"

# Names that shells take apart, and a program and a directory of the same kind.
odd="o'd d\$(touch planted)\`x\`\"
y"
mkdir "$odd"
mv eva_clip.yaml "$odd/ev'a.yaml"
ln -s "$MEOPT" "$odd/meopt"
expect 0 "$MEOPT" sbatch "$odd/ev'a.yaml" --name first --run-dir "$odd/runs" "train.steps=3" -o job.sh
bash -n job.sh || fail "bash does not read it"
if command -v shellcheck >/dev/null; then shellcheck -s bash -e SC2016 job.sh >out 2>err || fail "shellcheck"; fi
mkdir bin
cat >bin/srun <<'END'
#!/bin/bash
for a; do printf '[%s]' "$a"; done >>"$PLAY/said"
echo >>"$PLAY/said"
trap 'echo warned >>"$PLAY/said"; exit 10' USR1
trap 'echo told to end >>"$PLAY/said"; exit 10' TERM
read -r code rest <"$PLAY/ends"
echo "$rest" >"$PLAY/ends"
[ "$code" = wait ] || exit "$code"
touch "$PLAY/waits"
while :; do sleep 0.05; done
END
printf '#!/bin/sh\necho "scontrol $*" >>"$PLAY/said"\n' >bin/scontrol
chmod +x bin/*
sed 's/pause=5/pause=0.1/; s/pause=$((pause \* 2))/:/' job.sh >quick.sh
play() { # how srun ends, one after another; then the code of the script
    rm -f said waits
    echo "$1" >ends
    code=0
    PATH="$here/bin:$PATH" PLAY=$here SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=3 bash quick.sh >out 2>err || code=$?
    [ "$code" = "$2" ] || fail "srun ended with $1, the script with $code, not $2"
}
play 0 0
[ ! -e planted ] || fail "the script ran a part of a file's name"
line=$(head -c 4096 said)
case $line in "[--kill-on-bad-exit=1][--cpus-per-task=3][$(realpath "$MEOPT")][train][--resume-if-exists][--no-dashboard][--run-dir][$here/$odd/runs][--name][first][--][$here/$odd/ev'a.yaml][train.steps=3]") ;;
*) fail "srun was given $line" ;; esac
play 13 13
play 10 0 # stopped by a person: COMPLETED, not FAILED, in sacct
! grep -q scontrol said || fail "a run that a person stopped is put back into the queue"
play '14 14 0' 0
[ "$(grep -c resume-if-exists said)" = 3 ] || fail "a lost rank is tried again"
play '14 14 14 14 0' 14

signalled() { # signal: the script's code goes to ./code
    rm -f said waits
    echo wait >ends
    PATH="$here/bin:$PATH" PLAY=$here SLURM_JOB_ID=7 bash quick.sh >out 2>err &
    script=$!
    wait_for 10 [ -e waits ] || :
    kill "-$1" "$script"
    exits 10 wait "$script" || fail "the script ended with $code after SIG$1"
}
signalled USR1
grep -qx warned said && grep -qx 'scontrol requeue 7' said || fail "warned, saved, back into the queue: $(cat said)"
signalled TERM
grep -qx 'told to end' said && ! grep -q scontrol said || fail "ended by scancel: $(cat said)"
echo ok
