# fish completion for meopt: the program itself knows its commands, options, keys and sources.
function __meopt_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l files
    for line in (meopt complete -- $words[2..-1] "$word" 2>/dev/null)
        if test "$line" = :files
            set files yes
        else
            echo $line
        end
    end
    if set -q files[1]
        __fish_complete_path "$word"
    end
end
complete -c meopt -f -a '(__meopt_complete)'
