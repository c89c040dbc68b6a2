#!/bin/sh
# The recipes for conda, Spack and Apptainer have the project's version, name each library that CMake looks for, and set options that exist;
# the Spack package is run with a stand-in of Spack's classes, the scripts of the Apptainer definition are shell.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
cat >check.py <<'PY'
import os, re, subprocess, sys, types

source = sys.argv[1]
read = lambda name: open(os.path.join(source, name)).read()
cmake = read("CMakeLists.txt")
recipe, spack, image = (read("configs/packaging/" + n) for n in ("recipe.yaml", "spack/packages/meopt/package.py", "meopt.def"))
version = re.search(r"project\(meopt VERSION ([\d.]+)", cmake)[1]
wrong = []
for name, found in (("recipe.yaml", re.findall(r'^  version: "([\d.]+)"', recipe, re.M)), ("package.py", re.findall(r'version\("([\d.]+)"\)', spack)),
                    ("meopt.def", re.findall(r"^    Version ([\d.]+)", image, re.M))):
    if found != [version]:
        wrong.append("%s: version %s, the project's is %s" % (name, found, version))

# library of pkg-config: package of conda-forge, of Spack
packages = {"yaml-0.1": ("yaml", "libyaml"), "libcurl": ("libcurl", "curl"), "libarchive": ("libarchive",) * 2, "libjpeg": ("libjpeg-turbo",) * 2,
            "libpng": ("libpng",) * 2, "libwebp": ("libwebp",) * 2, "libwebpdemux": ("libwebp", "libwebp+libwebpdemux"), "zlib": ("zlib", "zlib-api"),
            "jansson": ("jansson",) * 2, "libpcre2-8": ("pcre2",) * 2, "libutf8proc": ("libutf8proc", "utf8proc"), "libcrypto": ("openssl",) * 2,
            "ncursesw": ("ncurses",) * 2}
host = recipe[recipe.index("  host:"):recipe.index("  ignore_run_exports:")]
looked = re.findall(r"pkg_check_modules\(\w+ (?:REQUIRED )?IMPORTED_TARGET ([^)]+)\)", cmake)
for library in " ".join(looked).split():
    library, _, least = library.partition(">=")
    if library not in packages:
        wrong.append("%s: no package known: add it to the recipes and to this table" % library)
        continue
    conda, other = packages[library]
    if not re.search(r"^    - %s%s$" % (re.escape(conda), re.escape(" >=" + least) if least else ""), host, re.M):
        wrong.append("recipe.yaml: lacks %s %s" % (conda, least))
    if not re.search(r'depends_on\("%s(\+\w+)?%s"\)' % (re.escape(other), re.escape("@" + least + ":") if least else ""), spack):
        wrong.append("package.py: lacks %s %s" % (other, least))
least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+?)(?:\.\.\.[\d.]+)?\)", cmake)[1]
if "cmake >=" + least not in recipe or '"cmake@%s:"' % least not in spack:
    wrong.append("another CMake than %s" % least)
known = set(re.findall(r"(?:option\(|DEFINED |\$\{|set\()(MEOPT_\w+)", cmake))
for name in re.findall(r"-D(MEOPT_\w+)", recipe + image) + re.findall(r'"(MEOPT_\w+)"', spack):
    if name not in known:
        wrong.append("%s is no option of CMakeLists.txt" % name)

# Spack's classes as far as the package uses them
calls = {"depends_on": [], "variant": []}
class Base:
    def define(self, name, value): return "-D%s=%s" % (name, "ON" if value is True else "OFF" if value is False else value)
    def define_from_variant(self, name, variant):
        assert variant in calls["variant"], variant
        return self.define(name, "x")
module = types.ModuleType("spack.package")
module.__all__ = ["CMakePackage", "Executable", "depends_on", "license", "run_after", "variant", "version"]
module.CMakePackage, module.Executable = Base, lambda path: lambda *words: subprocess.run([path, *words], check=True)
module.depends_on = lambda name, **_: calls["depends_on"].append(name)
module.variant = lambda name, **_: calls["variant"].append(name)
module.license = module.version = lambda *_, **__: None
module.run_after = lambda _: lambda f: f
sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), module
scope = {}
exec(compile(spack, "package.py", "exec"), scope)
package = scope["Meopt"]()
package.prefix = types.SimpleNamespace(bin=types.SimpleNamespace(meopt=sys.argv[2]))
args = package.cmake_args()
if "-DBUILD_TESTING=OFF" not in args or len(args) != 1 + len(calls["variant"]):
    wrong.append("package.py: cmake_args %s" % args)
package.run_program()

stages = re.findall(r"^Stage: (\w+)$", image, re.M)
if stages != ["build", "final"] or image.count("Bootstrap: ") != 2:
    wrong.append("meopt.def: stages %s" % stages)
for section, text in re.findall(r"^%(post|environment|runscript|test)\n((?:    .*\n|\n)+)", image, re.M):
    if subprocess.run(["sh", "-n"], input=text, text=True).returncode:
        wrong.append("meopt.def: %%%s is no shell" % section)
for path in re.findall(r"/src/([\w./]+)", image):
    if not os.path.exists(os.path.join(source, path)):
        wrong.append("meopt.def: %s does not exist" % path)

if re.findall(r"stdlib\(.(\w+).\)", recipe) != re.findall(r"^(\w+)_stdlib:", read("configs/packaging/variants.yaml"), re.M):
    wrong.append("variants.yaml: lacks the library that stdlib() of recipe.yaml names")
try:
    import rattler_build
    stage = rattler_build.Stage0Recipe.from_file(source + "/configs/packaging/recipe.yaml")
    variants = rattler_build.VariantConfig.from_file(source + "/configs/packaging/variants.yaml")
    built = [v.recipe.to_dict()["requirements"]["build"] for v in stage.render(variants)]
    if len(built) != 1 or not any(name.startswith("sysroot_linux") for name in built[0]):
        wrong.append("recipe.yaml: rattler-build renders %s" % built)
except ImportError:
    print("rattler-build's own reading of recipe.yaml was not tried")
print("\n".join(wrong))
sys.exit(bool(wrong))
PY
"${MEOPT_PYTHON:-python3}" check.py "$MEOPT_SOURCE" "$MEOPT" >out || { cat out; fail "recipes"; }
grep -q meopt out || fail "the Spack package did not run the program"
# a library that only CMake knows is found
mkdir -p copy
(cd "$MEOPT_SOURCE" && tar -cf - CMakeLists.txt configs/packaging configs/packages.sh) | tar -xf - -C copy
sed -i 's/^pkg_check_modules(YAML .*/&\npkg_check_modules(NEW REQUIRED IMPORTED_TARGET libnew)/; s/VERSION 0\.2\.0 /VERSION 9.9.9 /' copy/CMakeLists.txt
if python3 check.py "$work/copy" "$MEOPT" >out; then fail "a new library was not noticed"; fi
grep -q libnew out && grep -q 9.9.9 out || { cat out; fail "a new library or version was not noticed"; }
