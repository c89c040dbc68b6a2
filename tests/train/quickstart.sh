# Sourced by tests: a directory of its own, $work, where the sample archives lie in sample/ and the quickstarts in
# configs/, and where the test goes on. It is removed at the end, and the processes whose numbers `left` holds are killed.
work=$(mktemp -d -p "${TMPDIR:-/tmp}")
trap 'test ! -s "$work/left" || kill -KILL $(cat "$work/left") 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE"/configs/quickstart*.yaml configs/
few_images() { # N: of the archive's 160
    find "$work/sample/COCO2014" -name '*.jpg' | sort | tail -n "+$(($1 + 1))" | tr '\n' '\0' | xargs -0 rm
}
