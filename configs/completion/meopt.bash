# bash completion for meopt: the program itself knows its commands, options, keys and sources.
_meopt()
{
    local line files=
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
        :files) files=yes ;;
        *) COMPREPLY+=("$line") ;;
        esac
    done < <(meopt complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [ -n "$files" ]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    fi
    case ${COMPREPLY[0]-} in
    *=) compopt -o nospace 2>/dev/null ;;
    esac
}
# '=' must not cut key=value into three words
_meopt_words()
{
    local COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
    local words cword cur prev
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref -n = words cword
        COMP_WORDS=("${words[@]}")
        COMP_CWORD=$cword
    fi
    _meopt
    # readline replaces what stands behind the last '='
    case ${COMP_WORDS[COMP_CWORD]} in
    *=*) declare -F _get_comp_words_by_ref >/dev/null && COMPREPLY=("${COMPREPLY[@]#"${COMP_WORDS[COMP_CWORD]%%=*}="}") ;;
    esac
}
complete -F _meopt_words meopt
