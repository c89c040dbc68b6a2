"""What is tried: commands, what each may end with, and what must be there afterwards."""

import errno, hashlib, json, os, pty, re, select, subprocess, time

LEFT_OVER = re.compile(
    r"(\.partial|\.trash|\.tmp|\.aside|\.new|\.old)(-\w+)?$|^\.[^.].*\.[A-Za-z0-9]{6}$|^\.meopt-fetch"
)

# call: errors it is made to fail with. 0: a short read or write, "kill": SIGKILL there
FAILURES = {
    "open": [errno.EIO, errno.EMFILE, errno.ENOSPC, errno.EACCES, "kill"],
    "opendir": [errno.EIO, errno.EMFILE, errno.EACCES],
    "readdir": [errno.EIO],
    "read": [errno.EIO, 0, errno.EINTR],
    "write": [errno.ENOSPC, 0, errno.EIO, errno.EINTR, "kill"],
    "sync": [errno.EIO, errno.ENOSPC, errno.EINTR, "kill"],
    "rename": [errno.EIO, errno.ENOSPC, "kill"],
    "unlink": [errno.EIO, errno.EACCES, "kill"],
    "mkdir": [errno.ENOSPC, errno.EIO, "kill"],
    "stat": [errno.EIO, errno.ESTALE],
    "truncate": [errno.EIO, errno.EINTR, "kill"],
    "allocate": [errno.ENOSPC, errno.EOPNOTSUPP, errno.EINTR],
    "chmod": [errno.EPERM, errno.EIO],
    "lock": [errno.ENOLCK, errno.EIO],
    "close": [errno.EIO],
    "mmap": [errno.ENOMEM, errno.ENODEV],
    "malloc": [errno.ENOMEM],
    "spawn": [errno.EAGAIN],
    "thread": [errno.EAGAIN],
    "pipe": [errno.EMFILE],
    "accept": [errno.EMFILE],
}
# Without a path of their own: the message has the cause alone.
NAMELESS = ("malloc", "spawn", "thread", "pipe", "accept")


def digest(path):
    """Of a file or of a tree, names and bytes; None: not there."""
    if not os.path.lexists(path):
        return None
    h = hashlib.sha256()
    if not os.path.isdir(path):
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()
    for where, directories, files in os.walk(path):
        directories.sort()
        for name in sorted(files):
            full = os.path.join(where, name)
            h.update(os.path.relpath(full, path).encode() + b"\0" + digest(full).encode())
    return h.hexdigest()


def metrics(run):
    """The numbers of training, without times; None where a line is torn."""
    out = []
    try:
        with open(run + "/metrics.jsonl") as f:
            for line in f:
                o = json.loads(line)
                out.append(
                    tuple(
                        (k, o[k])
                        for k in sorted(o)
                        if k not in ("images_per_s", "step_ms", "data_wait_ms", "cards")
                    )
                )
    except (OSError, ValueError):
        return None
    return tuple(out)


def run_result(run):
    """All of a finished run that may not depend on what happened to it."""
    steps = (
        sorted(n for n in os.listdir(run + "/ckpt") if re.match(r"^step-\d+$", n))
        if os.path.isdir(run + "/ckpt")
        else []
    )
    result = {"metrics": metrics(run), "LATEST": digest(run + "/ckpt/LATEST"), "checkpoints": tuple(steps)}
    for name in ("model.safetensors", "optimizer.bin"):
        result[name] = steps and digest("%s/ckpt/%s/%s" % (run, steps[-1], name)) or None
    if os.path.exists(run + "/teacher.safetensors"):
        result["teacher.safetensors"] = digest(run + "/teacher.safetensors")
    try:
        with open(run + "/meta.json") as f:
            meta = json.load(f)
        result["meta"] = tuple((k, meta.get(k)) for k in ("images", "data_crc32c", "total_steps", "seed"))
    except (OSError, ValueError):
        result["meta"] = None
    return result


def differ(want, got):
    return [k for k in want if want[k] != got.get(k)]


def left_over(area):
    return sorted(
        os.path.relpath(os.path.join(w, n), area)
        for w, d, f in os.walk(area)
        for n in d + f
        if LEFT_OVER.search(n)
    )


def starts(run):
    """The steps that the run began or resumed with, of events.jsonl."""
    steps = []
    try:
        with open(run + "/events.jsonl", errors="replace") as f:
            lines = f.read().split("\n")
    except OSError:
        return steps
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in ("started", "resumed"):
            steps.append(event["step"])
    return steps


def newest(run):
    try:
        return max([int(n[5:]) for n in os.listdir(run + "/ckpt") if re.match(r"^step-\d+$", n)] or [-1])
    except OSError:
        return -1


class Command:
    """name; cases of the short form; template: directory that each begins with (None: empty); argv; codes: what
    it may end with when a call failed."""

    start = subprocess.Popen
    may_lack = ()  # of its result, where it ends well and says which file and why

    def __init__(self, name, cases, template, argv, codes):
        self.name, self.cases, self.template, self.argv, self.codes = name, cases, template, argv, codes
        self.want = None  # of an undisturbed run

    def result(self, area):
        """What must be the same after the command, whatever happened on the way."""
        raise NotImplementedError

    def between(self, area, shim, ended_well):
        """What is wrong after a command that failed: a list of texts."""
        return []

    def again(self, area, shim):
        """The same command, undisturbed: (code, text)."""
        return shim.plain(self.argv, area)


class Train(Command):
    """A run's first command; what it leaves must be taken up by --resume, or by the same command."""

    may_lack = ("metrics", "LATEST", "checkpoints", "meta")  # never the weights

    def result(self, area):
        return run_result(area + "/run")

    def between(self, area, shim, ended_well):
        wrong = []
        state = area + "/run/state.json"
        if os.path.exists(state):
            try:
                with open(state) as f:
                    json.load(f)
            except ValueError:
                wrong.append("state.json is half")
        return wrong + whole_checkpoints(area + "/run", shim)

    def again(self, area, shim):
        if not os.path.isdir(area + "/run"):
            return shim.plain(self.argv, area)
        return shim.plain(["train", "--resume", "run"], area)


class Resume(Train):
    """The checkpoint that it began with may be replaced by a newer one only."""

    def __init__(self, name, cases, template, argv, codes, step):
        super().__init__(name, cases, template, argv, codes)
        self.step = step

    def between(self, area, shim, ended_well):
        wrong = super().between(area, shim, ended_well)
        code, said = shim.plain(["export", "run", "-o", "exported.safetensors", "--json"], area)
        step = re.search(r'"step": *(\d+)', said)
        if code != 0 or not step or int(step.group(1)) < self.step:
            wrong.append(
                "the checkpoint of step %d does not load any more: exit %s, %s"
                % (self.step, code, last_line(said))
            )
        if os.path.exists(area + "/exported.safetensors"):
            os.unlink(area + "/exported.safetensors")
        return wrong


def whole_checkpoints(run, shim):
    """Each step-N, by its manifest."""
    wrong = []
    for name in os.listdir(run + "/ckpt") if os.path.isdir(run + "/ckpt") else []:
        if not re.match(r"^step-\d+$", name):
            continue
        try:
            with open("%s/ckpt/%s/MANIFEST.json" % (run, name)) as f:
                manifest = json.load(f)
            for file, about in manifest["files"].items():
                if os.path.getsize("%s/ckpt/%s/%s" % (run, name, file)) != about["bytes"]:
                    wrong.append("%s/%s has another size than its manifest says" % (name, file))
        except (OSError, ValueError, KeyError) as why:
            wrong.append("%s is half: %s" % (name, why))
    return wrong


class Fetch(Command):
    def result(self, area):
        return {n: digest(area + "/" + n) for n in ("COCO2014", "ModelWeight")}

    def between(self, area, shim, ended_well):
        got = self.result(area)
        return ["%s is there, and not whole" % n for n in got if got[n] and got[n] != self.want[n]]

    def again(self, area, shim):
        code, said = super().again(area, shim)
        if code == 0:
            code, verified = shim.plain(self.argv + ["--verify"], area)
            said += verified
        return code, said


class OneFile(Command):
    """A file is replaced: it is the old one, or the new one."""

    def __init__(self, name, cases, template, argv, codes, file):
        super().__init__(name, cases, template, argv, codes)
        self.file = file
        self.old = digest(os.path.join(template, file))

    def result(self, area):
        names = sorted(n for n in os.listdir(area) if not LEFT_OVER.search(n))
        return {self.file: digest(area + "/" + self.file), "directory": tuple(names)}

    def between(self, area, shim, ended_well):
        now = digest(area + "/" + self.file)
        if ended_well or now == self.want[self.file]:
            return []
        return [] if now == self.old else ["%s is neither the old nor the new one" % self.file]


class Compare(OneFile):
    """A part of the table may be missing where it is reported."""

    may_lack = ("page.html",)


class Terminal:
    """A process on a pseudo terminal whose user keeps pressing q."""

    def __init__(self, argv, cwd, env, stdin, stdout, stderr, start_new_session):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env, LC_ALL="C.UTF-8"),
            stdin=slave,
            stdout=slave,
            stderr=stderr,
            start_new_session=True,
        )
        os.close(slave)
        self.pid, self.copy = self.process.pid, stdout

    def wait(self, seconds=None):
        end, screen, pressed = time.time() + (seconds or 5), b"", 0
        while time.time() < end:
            if select.select([self.master], [], [], 0.02)[0]:
                try:
                    screen += os.read(self.master, 65536)
                except OSError:  # the other side is closed
                    break
            if screen and time.time() > pressed + 0.1:
                os.write(self.master, b"q")
                pressed = time.time()
        code = self.process.wait(max(0.1, end - time.time()))
        os.close(self.master)
        self.copy.write(screen)
        return code


class Attach(Command):
    """A viewer changes nothing and gives the terminal back."""

    start = Terminal

    def result(self, area):
        return {"run": digest(area + "/run")}

    def between(self, area, shim, ended_well):
        wrong = [] if digest(area + "/run") == self.want["run"] else ["the run has changed"]
        with open(shim.work + "/out", "rb") as f:
            screen = f.read()
        if shim.last_code != 137 and screen.rfind(b"\x1b[?1049h") > screen.rfind(b"\x1b[?1049l"):
            wrong.append("the terminal is not given back")
        return wrong

    def again(self, area, shim):
        r = shim.run(self.argv, area, ["/nowhere"], start=Terminal, seconds=10)
        return r.code, r.out + r.err


def last_line(text):
    """The error in what a command said."""
    lines = [l.strip() for l in text.strip().split("\n") if l.strip()]
    errors = [l for l in lines if l.startswith("meopt: ")]
    return (errors or lines or ["(silent)"])[-1]
