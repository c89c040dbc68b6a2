# Sourced by tests that train: tests/lib.sh, then the sample archives in sample/ and the quickstart configurations in configs/ of $work,
# which becomes the current directory. Tests share the cores: a rank computes with one thread.
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
export OMP_NUM_THREADS=1
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE"/configs/quickstart*.yaml configs/
few_images() { # N: of the archive's 160
    find "$work/sample/COCO2014" -name '*.jpg' | sort | tail -n "+$(($1 + 1))" | tr '\n' '\0' | xargs -0 rm
}
