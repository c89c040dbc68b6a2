#!/bin/sh
# Installs the packages that MEOpt is built with: Debian 11 or Ubuntu 20.04 and later. Does nothing if they are installed. `packages.sh tarball`
# adds those of the target tarball, `packages.sh test` those of the tests, too, `packages.sh test long` those of their long form. Where apt is
# missing, INSTALL.md lists the packages.
# Exit status: 0, that of apt-get if it fails, 3 if packages are missing and cannot be installed: neither root nor sudo.
set -eu
jpeg=libjpeg62-turbo-dev
grep -qi ubuntu /etc/os-release && jpeg=libjpeg-turbo8-dev
packages="gcc libc6-dev cmake ninja-build pkg-config libyaml-dev libcurl4-openssl-dev libarchive-dev $jpeg libpng-dev libwebp-dev zlib1g-dev
  libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libncurses-dev gettext"
optional="ca-certificates libopenmpi-dev openmpi-bin" # installed where the distribution has them
case ${1:-} in tarball | test) packages="$packages dpkg-dev liblzma-dev libzstd-dev" ;; esac
if [ "${1:-}" = test ]; then
    packages="$packages build-essential libcmocka-dev clang clang-format valgrind nginx-light tmux mandoc man-db locales groff zip unzip zstd xz-utils
      openssl file openmpi-bin libopenmpi-dev shellcheck fish rpm python3 python3-venv libcap2-bin fonts-dejavu-core"
    # libFuzzer and sanitizers of clang 14 and later, a library of the monitor, the compiler for cards, the browser for compare's HTML page
    optional="$optional libclang-rt-dev librocm-smi-dev hipcc chromium-headless-shell"
fi
[ "${2:-}" = long ] && packages="$packages slurm-wlm munge iproute2 qemu-user"
absent() { for p; do dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || printf ' %s' "$p"; done; }
offered() { for p; do apt-cache show "$p" >/dev/null 2>&1 && printf ' %s' "$p" || :; done; }
command -v apt-get >/dev/null || { echo "no apt-get: INSTALL.md lists the packages of other distributions" >&2 && exit 0; }
# shellcheck disable=SC2086
missing=$(absent $packages) more=$(absent $optional)
[ "$missing$more" ] || exit 0
apt="env DEBIAN_FRONTEND=noninteractive apt-get -qq"
if [ "$(id -u)" != 0 ]; then
    [ "$missing" ] || exit 0
    apt="sudo $apt"
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        echo "missing packages:$missing
Installing them requires root. Ask an administrator to run: apt-get install$missing
Without an administrator: use conda for the libraries, or a tarball made on another machine (both in INSTALL.md)." >&2
        exit 3
    fi
fi
# shellcheck disable=SC2086
{
    [ -z "$missing" ] || $apt update
    more=$(offered $more)
    [ -z "$missing$more" ] || echo "installing:$missing$more" >&2
    [ -z "$missing" ] || $apt install -y --no-install-recommends $missing >/dev/null
    [ -z "$more" ] || $apt install -y --no-install-recommends $more >/dev/null ||
        echo "could not install$more: their tests will be skipped" >&2
}
