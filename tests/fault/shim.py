"""Commands under libfault.so (shim.h): start them, read what it counted and wrote down."""

import ctypes, os, shutil, signal, struct, subprocess, time

# struct shared of shim.h
NAMES, CALLS, FAILED, WHERE, LOG = 0, 512, 768, 784, 1024
HEAD = 1048


class Result:
    def __init__(self, code, out, err, shared):
        self.code, self.out, self.err = code, out, err  # code: None when it did not end; 128+n for a signal
        names = [shared[i * 16 : i * 16 + 16].split(b"\0")[0].decode() for i in range(32)]
        self.calls = dict((n, c) for n, c in zip(names, struct.unpack_from("32Q", shared, CALLS)) if n)
        (self.failed,) = struct.unpack_from("Q", shared, FAILED)
        self.where = shared[WHERE : WHERE + 240].split(b"\0")[0].decode(errors="replace")
        self.log_bytes, self.log_lost = struct.unpack_from("QQ", shared, LOG + 8)
        self.log = shared[HEAD : HEAD + self.log_bytes]


class Shim:
    """Where things are: library, program, a directory to work in."""

    def __init__(self, library, meopt, work):
        self.library, self.meopt, self.work = library, meopt, work
        self.environment = dict(
            os.environ,
            OMP_NUM_THREADS="1",
            OMP_DYNAMIC="false",
            TERM="xterm",
            XDG_STATE_HOME=work + "/state",
            XDG_CONFIG_HOME=work + "/state",
            HOME=work + "/state",
            TMPDIR=work + "/tmp",
            https_proxy="http://127.0.0.1:9",
        )
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        for d in "state", "tmp":
            os.makedirs(os.path.join(work, d), exist_ok=True)

    def plain(self, argv, area, seconds=60):
        """Without the library: (code, text of both)."""
        with open(self.work + "/plain", "wb+") as out:
            p = subprocess.Popen(
                [self.meopt] + argv,
                cwd=area,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            try:
                code = p.wait(seconds)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                code = None
            out.seek(0)
            return shell_code(code), out.read().decode(errors="replace")

    def run(self, argv, area, under, seconds=30, log_bytes=0, start=subprocess.Popen, **options):
        """options: call, k, errno, ever, kill, slow (FAULT_CALL and so on)."""
        shared = self.work + "/shared"
        with open(shared, "wb") as f:
            f.truncate(HEAD + log_bytes)
        environment = dict(
            self.environment,
            LD_PRELOAD=os.path.basename(self.library),  # a path in it would end at a space
            LD_LIBRARY_PATH=os.path.dirname(self.library),
            FAULT_SHARED=shared,
            FAULT_UNDER=":".join(under),
        )
        for name, value in options.items():
            if value:
                environment["FAULT_" + name.upper()] = str(int(value) if isinstance(value, bool) else value)
        if log_bytes:
            environment["FAULT_LOG"] = "1"
        with open(self.work + "/out", "wb+") as out, open(self.work + "/err", "wb+") as err:
            p = start(
                [self.meopt] + argv,
                cwd=area,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = p.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            if code is not None and code < 0:
                gone()
            out.seek(0)
            err.seek(0)
            with open(shared, "rb") as f:
                self.last_code = shell_code(code)
                return Result(
                    self.last_code,
                    out.read().decode(errors="replace"),
                    err.read().decode(errors="replace"),
                    f.read(),
                )


def shell_code(code):
    return 128 - code if code is not None and code < 0 else code


def gone():
    """Wait until what a killed process left behind has ended, too: orphans are ours (PR_SET_CHILD_SUBREAPER)."""
    end = time.time() + 10
    while time.time() < end:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return True
    return False


def copy(template, area):
    shutil.rmtree(area, ignore_errors=True)
    if template:
        shutil.copytree(template, area, symlinks=True)
    else:
        os.makedirs(area)
