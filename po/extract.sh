#!/bin/sh
# extract.sh MESSAGES POT: writes all messages of the sources, and those that the program MESSAGES (po/messages.c) prints, to POT.
set -eu
messages=$1 pot=$2
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Functions that translate their own texts, by the position of a text among their arguments.
first='_ N_ log_info log_warn io_error screen_refused log_row row'
second='run_check_layout line_advise damaged table_warn bad restart_part stop_writing log_row row set_unsupported show_message
  monitor_note label_names_report report_empty heartbeat_agree write_error png_error screen_refused refuse report_library print_line write_comment'
third='error_set error_errno line_advise doctor_add damaged refuse source_error send_request file_below_error unlisted
  contradiction next_mirror unsupported KIND weights_refuse_missing report_library copy comm_name_rank optim_fail'
fourth='REFUSE NOTE error_set error_errno refuse source_error problem work_add dash_put screen_put comm_agree unlisted next_mirror allocate
  node_error document_at work_result comm_name_rank unsupported out_of_range'
fifth='REFUSE NOTE problem dash_put node_error comm_name_rank'
seventh='document_error'
eighth='document_error'
find core cli fetch -name '*.[ch]' | LC_ALL=C sort |
    grep -vE '^core/(compare/(paper|plot_svg|plot_pdf)|run/prometheus|weights/write_pt)' >"$work/files"
{
    "$messages"
    sed -n 's/^ *about: \(.*\)/N_("\1")/p' configs/sources.yaml
} >"$work/tables.c"
pass() { # POSITION FUNCTION...
    at=$1
    shift
    keywords=
    for name; do keywords="$keywords --keyword=$name:$at"; done
    # shellcheck disable=SC2086
    xgettext --from-code=UTF-8 --language=C --keyword $keywords --no-location --sort-output --package-name=meopt -f "$work/files" -o "$work/$at.pot"
}
# shellcheck disable=SC2086
{
    pass 1 $first
    pass 2 $second
    pass 3 $third
    pass 4 $fourth
    pass 5 $fifth
    pass 7 $seventh
    pass 8 $eighth
}
xgettext --from-code=UTF-8 --language=C --keyword --keyword=N_ --no-location -o "$work/tables.pot" "$work/tables.c"
msgcat --use-first --no-location --sort-output "$work"/*.pot -o "$pot"
