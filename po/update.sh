#!/bin/sh
# update.sh MESSAGES: adds the new messages of the sources to every po/*.po, without a translation, and removes those that are gone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
pot=$(mktemp)
trap 'rm -f "$pot"' EXIT
sh "$here/extract.sh" "$1" "$pot"
for po in "$here"/*.po; do
    msgmerge --quiet --no-fuzzy-matching --no-location --sort-output --backup=none --update "$po" "$pot"
    msgattrib --no-obsolete --sort-output -o "$po" "$po"
done
