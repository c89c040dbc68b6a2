"""The k-th call of every kind fails, in each of the commands that write what people keep: tests/tools/fault.sh.

One line for each violation:  COMMAND: CALL K ERROR [ever] (who: file): what is wrong
At the end one line for each command: the calls that it makes, the cases tried, the violations.
"""

import collections, errno, os, random, re, shutil, struct, sys, time
from cases import *
from shim import Shim, copy, shared_out

SEED = int(os.environ.get("MEOPT_FAULT_SEED", "1"))


def name_of(how):
    return "SIGKILL" if how == "kill" else "short" if how == 0 else errno.errorcode[how]


def said_file(message, where, area):
    """Whether the message has the file: its name, or its directory's; a temporary one's name is its target's."""
    path = where.split(": ", 1)[-1].rstrip("/")
    if path == area and re.search(r" \.(:|$)", message, re.M):
        return True
    names = [re.sub(r"^\.(.*?)(\.partial)?[.-][A-Za-z0-9]{6}$", r"\1", n) for n in path.split("/")[-2:]]
    return any(n and n in message for n in names)


def told(message, r, call, how, area):
    """What the message lacks: the cause, the file."""
    wrong = []
    cause = "memory" if how == errno.ENOMEM else os.strerror(how) if how not in (0, "kill") else ""
    if cause.lower() not in message.lower():
        wrong.append("the cause (%s) is not told: %s" % (cause, last_line(message)))
    if call not in NAMELESS and not said_file(message, r.where, area):
        wrong.append("the file is not named: %s" % last_line(message))
    return wrong


def judge_exit(command, area, r, message, call, how, ever):
    """What is wrong with how the command ended when it did not end well."""
    wrong = []
    if how == "kill":
        return (
            [] if r.code == 137 or r.code in command.codes else ["exit %d: %s" % (r.code, last_line(message))]
        )
    if r.code not in command.codes:
        wrong.append("exit %d: %s" % (r.code, last_line(message)))
    elif call == "malloc" and r.code != 12:
        wrong.append("exit %d, not 12: %s" % (r.code, last_line(message)))
    elif how == errno.ENOSPC and call in ("write", "allocate") and r.code != 5:
        wrong.append("exit %d, not 5: %s" % (r.code, last_line(message)))
    if not r.failed:
        return wrong + ["exit %d though no call failed: %s" % (r.code, last_line(message))]
    if how in (0, errno.EINTR) and not ever:
        wrong.append("gave up at a call that only wants to be made again: %s" % last_line(message))
    return wrong if ever else wrong + told(message, r, call, how, area)  # ever: another error may be reported


def judge(command, area, shim, r, call, how, ever):
    """What is wrong after one case."""
    if r.code is None:
        return ["did not end within 30 s"]
    message, wrong = r.err + (r.out if isinstance(command, Attach) else ""), []
    if r.code != 0:
        wrong += judge_exit(command, area, r, message, call, how, ever)
    elif r.failed and how != "kill":
        other = differ(command.want, command.result(area))
        if not set(other) <= set(command.may_lack):
            wrong.append("exit 0, but another %s" % ", ".join(other))
        elif other and told(message, r, call, how, area):
            wrong.append(
                "exit 0, but another %s, and nothing tells the file and the cause" % ", ".join(other)
            )
    wrong += command.between(area, shim, r.code == 0)
    again = 0
    if r.code != 0:
        again, said = command.again(area, shim)
        if again != 0:
            wrong.append("the same command again: exit %s, %s" % (again, last_line(said)))
        else:
            other = differ(command.want, command.result(area))
            if other:
                wrong.append("the same command again makes another %s" % ", ".join(other))
    if again == 0 and not (how == "kill" or call == "malloc") or isinstance(command, Train):
        left = left_over(area)
        if left and not ever and (how == "kill" or call == "malloc" or told(message, r, call, how, area)):
            wrong.append("left over: %s" % " ".join(left[:3]))
    return wrong


class Tally:
    def __init__(self):
        self.cases = self.violations = 0
        self.kinds = collections.Counter()
        self.sites = set()  # (call, place in the program) that failed

    def answer(self):
        return [self.cases, self.violations, self.kinds, sorted(self.sites)]

    def add(self, answer):
        self.cases += answer[0]
        self.violations += answer[1]
        self.kinds.update(answer[2])
        self.sites.update(map(tuple, answer[3]))


def one_case(command, shim, area, under, call, k, how, tally, ever=False):
    """False: the command makes no k-th call any more."""
    copy(command.template, area)
    options = {"kill": True} if how == "kill" else {"errno": how}
    r = shim.run(command.argv, area, under, call=call, k=k, ever=ever, start=command.start, **options)
    wrong = judge(command, area, shim, r, call, how, ever)
    if not r.failed and not wrong:
        return False
    tally.cases += 1
    tally.sites.add((call, r.site))
    for w in wrong:
        tally.violations += 1
        tally.kinds[re.sub(r"[0-9]+", "N", w)[:60]] += 1
        print(
            "%s: %s %d %s%s (%s): %s"
            % (
                command.name,
                call,
                k,
                name_of(how),
                " ever" if ever else "",
                r.where.replace(area + "/", ""),
                w,
            ),
            flush=True,
        )
    return True


def undisturbed(command, shim, area, under):
    """Runs it twice without a failure: what it makes is the same, and is what every case is compared with."""
    for turn in range(2):
        copy(command.template, area)
        r = shim.run(command.argv, area, under, start=command.start)
        if r.code != 0:
            sys.exit("%s without a fault: exit %s\n%s%s" % (command.name, r.code, r.out[-500:], r.err))
        now = command.result(area)
        if turn and now != command.want:
            sys.exit("%s is not the same twice: %s" % (command.name, ", ".join(differ(command.want, now))))
        command.want = now
    return r.calls


FEW = 12


def places(command, shim, area, under, chosen):
    """{call: {place in the program: the numbers of the calls made there}}, of an undisturbed run."""
    copy(command.template, area)
    r = shim.run(command.argv, area, under, start=command.start, sites=True, log_bytes=1 << 26)
    if r.code != 0 or r.log_lost:
        sys.exit("%s, places: exit %s, %d calls lost\n%s" % (command.name, r.code, r.log_lost, r.err))
    names, found = list(r.calls), {call: {} for call in chosen}
    for kind, number, place in struct.iter_unpack("IIQ", r.log):
        if names[kind] in found:
            found[names[kind]].setdefault(place, []).append(number)
    return found


def exhaust(found, chosen, tried):
    """(call, how, k, ever): every k of a kind that has few calls; else the first and the last call of every
    place, for each error, and between them as many as there are places, drawn by the seed. Allocations are far
    more: the first of every place. A place that an earlier command tried fails once, with an error drawn."""
    random_, cases = random.Random(SEED), []
    for call in chosen:
        new = {place: numbers for place, numbers in found[call].items() if (call, place) not in tried}
        for place in sorted(set(found[call]) - set(new)):
            cases.append((call, random_.choice(FAILURES[call]), min(found[call][place]), False))
        numbers = sorted(n for place in new for n in new[place])
        if call == "malloc":
            numbers = sorted(min(n) for n in new.values())
        elif len(numbers) > FEW:
            ends = {end for place in new for end in (min(new[place]), max(new[place]))}
            between = sorted(set(numbers) - ends)
            numbers = sorted(ends) + random_.sample(between, min(len(between), len(new)))
        cases += [(call, how, k, False) for how in FAILURES[call] for k in numbers]
        all_calls = sum(map(len, found[call].values()))
        if all_calls:
            cases += [(call, FAILURES[call][0], k, True) for k in (1, max(1, all_calls // 2))]
        tried |= {(call, place) for place in new}
    random_.shuffle(cases)
    return cases


def sample(name, found, chosen, count):
    """So many, spread over calls, k and errors by the seed, for each command others."""
    random_, cases = random.Random("%d %s" % (SEED, name)), []
    everything = [(call, how) for call in chosen for how in FAILURES[call] if found[call]]
    random_.shuffle(everything)
    for turn in range(count if everything else 0):
        call, how = everything[turn % len(everything)]
        k = random_.randint(1, sum(map(len, found[call].values())))
        cases.append((call, how, k, random_.random() < 0.05 and how != errno.EINTR))
    return cases


def make_area(shim, source):
    """Templates that the cases begin with; the data are next to them."""
    work = shim.work
    code, said = shim.plain(["fetch", "sample", "--dest", work + "/whole", "--quiet"], work)
    if code != 0:
        sys.exit("fetch sample: exit %s: %s" % (code, said))
    images, weights = work + "/data/images", work + "/data/weights"
    os.makedirs(images)
    photographs = sorted(os.listdir(work + "/whole/COCO2014/train2014"))[:6]
    for name in photographs:
        shutil.copy(os.path.join(work, "whole/COCO2014/train2014", name), images)
    shutil.copytree(work + "/whole/ModelWeight/dinov2", weights)
    with open(os.path.join(source, "configs/quickstart_dinov2.yaml")) as f:
        text = f.read().replace("../sample/COCO2014", images).replace("../sample/ModelWeight/dinov2", weights)
    text = re.sub(r"steps: *\d+", "steps: 3", text)
    text = re.sub(r"batch_size: *\d+", "batch_size: 2", text)
    text = re.sub(r"workers: *\d+", "workers: 1", text)
    os.makedirs(work + "/fresh")
    with open(work + "/fresh/tiny.yaml", "w") as f:
        f.write(text)
    train = [
        "train",
        "tiny.yaml",
        "--name",
        "run",
        "--run-dir",
        ".",
        "train.checkpoint_steps=1",
        "train.checkpoint_keep=2",
    ]
    for name, more in ("stopped", ["--stop-after", "2"]), ("done", []), ("other", ["train.seed=7"]):
        copy(work + "/fresh", work + "/" + name)
        code, said = shim.plain(train + more, work + "/" + name)
        if code not in (0, 10):
            sys.exit("%s: exit %s: %s" % (name, code, said))
    for name in "done", "other":
        for file in "student.safetensors", "student.pt", "page.html":
            with open("%s/%s/%s" % (work, name, file), "w") as f:
                f.write("the one before\n")
    os.makedirs(work + "/two")
    shutil.copytree(work + "/done/run", work + "/two/a")
    shutil.copytree(work + "/other/run", work + "/two/b")
    shutil.copy(work + "/done/page.html", work + "/two")
    return train


def commands(shim, train):
    """Each with the number of cases of the short form."""
    work = shim.work
    always = {1, 5, 12}
    return [
        Train("train", 16, work + "/fresh", train, always | {3, 7, 9}),
        Train("teacher", 8, work + "/fresh", train + ["train.cache_teacher=true"], always | {3, 7, 9}),
        Resume("resume", 16, work + "/stopped", ["train", "--resume", "run"], always | {3, 7, 9}, 2),
        Resume("finished", 8, work + "/done", ["train", "--resume", "run"], always | {3, 7, 9}, 3),
        Fetch("fetch", 16, None, ["fetch", "sample", "--dest", ".", "--quiet"], always | {3, 4, 9}),
        OneFile(
            "config",
            24,
            work + "/fresh",
            ["config", "set", "tiny.yaml", "optim.lr=3.0e-4", "train.steps=7"],
            always | {7, 9},
            "tiny.yaml",
        ),
        OneFile(
            "export",
            20,
            work + "/done",
            ["export", "run", "-o", "student.safetensors"],
            always | {3, 7},
            "student.safetensors",
        ),
        OneFile(
            "export-pt",
            12,
            work + "/done",
            ["export", "run", "--format", "pt", "-o", "student.pt"],
            always | {3, 7},
            "student.pt",
        ),
        Compare(
            "compare",
            20,
            work + "/two",
            ["compare", "a", "b", "--html", "page.html"],
            always | {3, 7},
            "page.html",
        ),
        Attach("attach", 12, work + "/done", ["attach", "run"], always | {2, 3, 7}),
    ]


def main():
    library, meopt, source, work = sys.argv[1:5]
    long_form = os.environ.get("MEOPT_LONG") == "1"
    only = os.environ.get("MEOPT_FAULT_COMMANDS", "").split()
    chosen = os.environ.get("MEOPT_FAULT_CALLS", "").split() or list(FAILURES)
    times = float(os.environ.get("MEOPT_FAULT_TIMES", "1"))
    shim = Shim(library, meopt, work)
    train = make_area(shim, source)
    total, table, tried = 0, [], set()
    for command in [c for c in commands(shim, train) if not only or c.name in only]:
        begun, area = time.time(), work + "/area"
        calls = undisturbed(command, shim, area, [area, work + "/data"])
        found = places(command, shim, area, [area, work + "/data"], chosen)
        cases = exhaust(found, chosen, tried) if long_form else sample(command.name, found, chosen, int(command.cases * times))

        def some(own, cases):
            tally, area = Tally(), own.work + "/area"
            for call, how, k, ever in cases:
                one_case(command, own, area, [area, work + "/data"], call, k, how, tally, ever)
            return tally.answer()

        tally = Tally()
        for answer in shared_out(shim, cases, some):
            tally.add(answer)
        known = {(call, place) for call in found for place in found[call]}
        table.append(
            (
                command.name,
                sum(calls.get(c, 0) for c in chosen),
                len(known),
                len(known & tally.sites),
                tally.cases,
                tally.violations,
                time.time() - begun,
            )
        )
        total += tally.violations
        for kind, count in tally.kinds.most_common():
            print("    %4d  %s" % (count, kind), flush=True)
        print("%-10s %8d %8d %8d %8d %10d %8.0f s" % table[-1], flush=True)
    print("%-10s %8s %8s %8s %8s %10s" % ("command", "calls", "places", "failed", "cases", "violations"))
    for row in table:
        print("%-10s %8d %8d %8d %8d %10d %8.0f s" % row)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
