# For pairs.sh and sets.sh, which read this with RESULTS in $1: a directory of its own with the three quickstarts, $results, $MEOPT, $steps.
here=$(cd "$(dirname "$0")/../../.." && pwd)
results=$(realpath "$1")
MEOPT=$(realpath "${MEOPT:-$here/build/meopt}")
steps=${STEPS:-30}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$here/configs/sample/$archive.tar.gz" -C sample; done
cp "$here"/configs/quickstart*.yaml configs
export GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=1
touch "$results"

# The learning rate that a rule gets.
rate_of() {
    case $1 in
    lion) echo 3.0e-4 ;;
    apsgd) echo 5.0e-2 ;;
    lamb) echo 1.0e-2 ;;
    *) echo 2.0e-3 ;;
    esac
}
