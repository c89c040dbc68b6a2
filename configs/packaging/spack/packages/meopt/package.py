# In the directory of the source: spack repo add configs/packaging/spack && spack dev-build meopt@0.2.0
from spack.package import *

try:  # Spack 1.0 and later
    from spack_repo.builtin.build_systems.cmake import CMakePackage
except ImportError:
    pass


class Meopt(CMakePackage):
    """Trains large transformers in a fraction of the usual card memory."""

    license("Apache-2.0")

    version("0.2.0")

    variant("mpi", default=True, description="ranks through MPI")
    variant("openmp", default=True, description="threads in the CPU kernels")
    variant("gpu_archs", default="none", description="cards to build code objects for: none, auto, native, gfx906;gfx928")

    depends_on("c", type="build")
    depends_on("cmake@3.16:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("gettext", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("libyaml")
    depends_on("curl")
    depends_on("libarchive")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("libwebp+libwebpdemux")
    depends_on("zlib-api")
    depends_on("jansson@2.11:")
    depends_on("pcre2@10.30:")
    depends_on("utf8proc")
    depends_on("openssl")
    depends_on("ncurses")

    def cmake_args(self):
        return [
            self.define("BUILD_TESTING", False),
            self.define_from_variant("MEOPT_MPI", "mpi"),
            self.define_from_variant("MEOPT_OPENMP", "openmp"),
            self.define_from_variant("MEOPT_GPU_ARCHS", "gpu_archs"),
        ]

    @run_after("install")
    def run_program(self):
        Executable(self.prefix.bin.meopt)("version", "--verbose")
