#!/bin/sh
# Install what MEOpt builds and tests with, on Debian 12 or Ubuntu 22.04 and later. Safe to run again: does nothing
# when all is there. Asks for root through sudo when needed. `packages.sh tarball` adds what only the target tarball uses,
# `packages.sh test` what the tests use, `packages.sh test long` what only their long form does.
set -eu
packages="build-essential cmake ninja-build pkg-config libyaml-dev libcurl4-openssl-dev libarchive-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev zlib1g-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libncurses-dev liburing-dev gettext ca-certificates"
grep -qi ubuntu /etc/os-release && packages=$(echo "$packages" | sed 's/libjpeg62-turbo-dev/libjpeg-turbo8-dev/')
[ "${1:-}" != test ] && [ "${1:-}" != tarball ] || packages="$packages liblzma-dev libzstd-dev"
[ "${1:-}" = test ] && packages="$packages libcmocka-dev clang clang-format libclang-rt-14-dev valgrind nginx-light tmux mandoc man-db locales
  groff zip unzip zstd xz-utils openssl openmpi-bin libopenmpi-dev shellcheck fish rpm python3 python3-venv libcap2-bin librocm-smi-dev"
[ "${2:-}" = long ] && packages="$packages slurm-wlm munge iproute2 qemu-user"
# Code objects for cards (gfx906, gfx90a): where the distribution has the compiler.
if [ "${1:-}" = test ] && apt-cache show hipcc >/dev/null 2>&1; then packages="$packages hipcc"; fi
missing=
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
# Where the system has it (Debian, 13 s; Ubuntu has a snap instead): the browser of the test of compare's HTML page.
browser=
[ "${1:-}" = test ] && ! command -v chromium-headless-shell >/dev/null && ! grep -qi ubuntu /etc/os-release && browser=chromium-headless-shell
[ -z "$missing$browser" ] && exit 0
echo "installing:$missing $browser" >&2
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq update
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
[ -z "$browser" ] || $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$browser" fonts-dejavu-core >/dev/null ||
    echo "no $browser here: the test compare_page will be skipped" >&2
