"""Commands under libfault.so (shim.h): start them, read what it counted and wrote down."""

import ctypes, json, os, shutil, signal, struct, subprocess, sys, time

# struct shared of shim.h
NAMES, CALLS, FAILED, WHERE, SITE, LOG = 0, 512, 768, 784, 1016, 1024
HEAD = 1048


class Result:
    def __init__(self, code, out, err, shared):
        self.code, self.out, self.err = code, out, err  # code: None when it did not end; 128+n for a signal
        names = [shared[i * 16 : i * 16 + 16].split(b"\0")[0].decode() for i in range(32)]
        self.calls = dict((n, c) for n, c in zip(names, struct.unpack_from("32Q", shared, CALLS)) if n)
        (self.failed,) = struct.unpack_from("Q", shared, FAILED)
        self.where = shared[WHERE : WHERE + 232].split(b"\0")[0].decode(errors="replace")
        (self.site,) = struct.unpack_from("Q", shared, SITE)
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
            LD_LIBRARY_PATH=os.path.dirname(library),  # a path in LD_PRELOAD would end at a space
            FAULT_UNSYNCED="1",  # power is cut on paper (power.py): three quarters of a small run's time
            FAULT_UNDER=work,
        )
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        for d in "state", "tmp":
            os.makedirs(os.path.join(work, d), exist_ok=True)

    def plain(self, argv, area, seconds=60):
        """Without a failure: (code, text of both)."""
        with open(self.work + "/plain", "wb+") as out:
            p = subprocess.Popen(
                [self.meopt] + argv,
                cwd=area,
                env=dict(self.environment, LD_PRELOAD="libfault.so"),
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
        """options: call, k, errno, ever, kill, sites (FAULT_CALL and so on)."""
        shared = self.work + "/shared"
        with open(shared, "wb") as f:
            f.truncate(HEAD + log_bytes)
        environment = dict(
            self.environment,
            LD_PRELOAD="libfault.so:libfault_memory.so",
            FAULT_SHARED=shared,
            FAULT_UNDER=":".join(under),
        )
        for name, value in options.items():
            if value:
                environment["FAULT_" + name.upper()] = str(int(value) if isinstance(value, bool) else value)
        if log_bytes and not options.get("sites"):
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
            with open(shared, "rb") as f:  # the log is a small part of the file
                head = f.read(HEAD)
                self.last_code = shell_code(code)
                return Result(
                    self.last_code,
                    out.read().decode(errors="replace"),
                    err.read().decode(errors="replace"),
                    head + f.read(struct.unpack_from("Q", head, LOG + 8)[0]),
                )


def shell_code(code):
    return 128 - code if code is not None and code < 0 else code


def gone():
    """Wait until what a killed process left has ended, too: orphans are ours (PR_SET_CHILD_SUBREAPER)."""
    end = time.time() + 10
    while time.time() < end:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return True
    return False


def job_count():
    given = os.environ.get("MEOPT_FAULT_JOBS")
    long_form = os.environ.get("MEOPT_LONG") == "1"
    return int(given) if given else len(os.sched_getaffinity(0)) if long_form else 1


def shared_out(shim, items, work):
    """work(shim of a job, its items) in several processes at once; what each returned."""
    jobs, ends = job_count(), []
    for job in range(jobs):
        reader, writer = os.pipe()
        sys.stdout.flush()
        if os.fork() == 0:
            code = 1
            try:
                os.close(reader)
                own = Shim(shim.library, shim.meopt, "%s/job%d" % (shim.work, job))
                with os.fdopen(writer, "w") as out:
                    json.dump(work(own, items[job::jobs]), out)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(writer)
        ends.append(reader)
    results = []
    for reader in ends:
        with os.fdopen(reader) as answer:
            text = answer.read()
        if not text:
            sys.exit("a job has ended before its time")
        results.append(json.loads(text))
    for _ in ends:
        os.wait()
    return results


def copy(template, area):
    shutil.rmtree(area, ignore_errors=True)
    if template:
        shutil.copytree(template, area, symlinks=True)
    else:
        os.makedirs(area)
