# Sourced with the names of modules: $python has them all, or the test is skipped. $MEOPT_PYTHON, else python3; in the
# long form, where neither has them, the environment that python_env.sh makes. tests/run.sh sets MEOPT_PYTHON in both forms.
# What Python compiles stays in the build: PyTorch is installed without, and to import it so takes twice as long.
# shellcheck shell=sh
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$MEOPT_BUILD/tests/bytecode"
has_modules() { # PYTHON, without importing them
    "$1" -c 'import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))' $modules 2>/dev/null
}
modules=$*
[ -n "$modules" ] || { echo "python.sh: name modules by set -- before"; exit 1; }
python=${MEOPT_PYTHON:-python3}
if ! has_modules "$python"; then
    [ "${MEOPT_LONG:-}" = 1 ] && [ -z "${MEOPT_PYTHON:-}" ] ||
        { printf 'skipped: no Python with all libraries: set MEOPT_PYTHON to one; tests/run.sh --long makes it\n%s has not all of %s\n' "$python" "$modules"; exit 77; }
    code=0
    python=$(sh "$MEOPT_SOURCE/tests/tools/python_env.sh") || code=$?
    [ $code != 3 ] || { echo "skipped: no package index answers, from which $modules would come"; exit 77; }
    [ $code = 0 ] && has_modules "$python" || { echo "the environment of the tests has not all of $modules"; exit 1; }
fi
