"""Power cuts: what a command changed is replayed up to every change, without what was not synced by then
(tests/tools/fault.sh).

The model: a file's bytes are durable from its fsync on, a name from the fsync of its directory on, all of it
from a syncfs on. What is not durable at the cut is lost (strict), kept up to some point in order (ordered: a
journal that was written back in parts), or kept and lost in any choice by the seed (random). A rename is one
change. Where a tree of the same bytes was tried already, it is not tried again.
"""

import hashlib, os, random, re, shutil, struct, sys
from cases import *
from faults import SEED, commands, make_area
from shim import Shim, copy, shared_out

RECORD = struct.Struct("IIIIQQ")  # struct record of shim.h
CREATE, WRITE, TRUNCATE, SYNC, SYNCFS, RENAME, UNLINK, MKDIR, MAPPED = range(9)
EXCHANGE = 2


class Node:
    """A file with its bytes, or a directory with its names, as they were before the command."""

    def __init__(self, directory, data=b""):
        self.directory, self.data, self.names = directory, data, {}


class Change:
    """One of them: names (directory, name, node or None), or bytes of a file (node, offset, bytes), or its length
    (node, length)."""

    def __init__(self, at, names=None, write=None, length=None):
        self.at, self.names, self.write, self.length, self.durable = at, names, write, length, None


class Journal:
    """Everything that a command changed below `area`."""

    def __init__(self, area):
        self.area, self.root, self.live, self.changes, self.count = area, Node(True), {}, [], 0
        self.now = {}  # id(directory): names, as the command sees them
        self.promised = []  # (change of a name of a checkpoint, its step)
        self.snapshot(area, self.root)

    def snapshot(self, path, node):
        self.live[os.lstat(path).st_ino] = node
        self.now[id(node)] = node.names.copy()
        for name in os.listdir(path):
            full = os.path.join(path, name)
            child = Node(os.path.isdir(full))
            self.live[os.lstat(full).st_ino] = child
            if child.directory:
                self.snapshot(full, child)
            else:
                with open(full, "rb") as f:
                    child.data = f.read()
            node.names[name] = child
        self.now[id(node)] = dict(node.names)

    def find(self, path):
        """(directory, last name) of an absolute path; None where it is not below the area."""
        parts = os.path.relpath(os.path.normpath(path), self.area).split("/")
        if parts[0] == "..":
            return None
        node = self.root
        for part in parts[:-1]:
            node = self.now[id(node)].get(part)
            if node is None or not node.directory:
                return None
        return node, parts[-1]

    def name(self, at, *changes):
        """Sets names: (directory, name, node or None)."""
        for directory, name, node in changes:
            if node is None:
                self.now[id(directory)].pop(name, None)
            else:
                self.now[id(directory)][name] = node
        self.changes.append(Change(at, names=changes))

    def sync(self, at, node):
        for c in self.changes:
            if c.durable is not None:
                continue
            if (
                node is None
                or (c.names and c.names[-1][0] is node)
                or (c.write and c.write[0] is node)
                or (c.length and c.length[0] is node)
            ):
                c.durable = at

    def read(self, log):
        offset = 0
        while offset < len(log):
            change, path_bytes, other_bytes, data_bytes, inode, value = RECORD.unpack_from(log, offset)
            offset += RECORD.size
            path = log[offset : offset + path_bytes].decode(errors="surrogateescape")
            other = log[offset + path_bytes : offset + path_bytes + other_bytes].decode(
                errors="surrogateescape"
            )
            offset += path_bytes + other_bytes
            self.apply(self.count, change, path, other, log[offset : offset + data_bytes], inode, value)
            offset += data_bytes
            self.count += 1

    def apply(self, at, change, path, other, data, inode, value):
        node, place = self.live.get(inode), self.find(path)
        if change in (CREATE, MKDIR) and place:
            node = self.live[inode] = Node(change == MKDIR)
            self.now[id(node)] = {}
            self.name(at, (place[0], place[1], node))
        elif change in (WRITE, MAPPED) and node:
            self.changes.append(Change(at, write=(node, value, data)))
        elif change == TRUNCATE and node:
            self.changes.append(Change(at, length=(node, value)))
        elif change == SYNC and node:
            self.sync(at, node)
        elif change == SYNCFS:
            self.sync(at, None)
        elif change == UNLINK and place:
            self.name(at, (place[0], place[1], None))
        elif change == RENAME and place:
            self.rename(at, place, self.find(other), value)

    def rename(self, at, source, target, flags):
        moved = self.now[id(source[0])].get(source[1])
        if moved is None or target is None:
            return
        back = self.now[id(target[0])].get(target[1]) if flags & EXCHANGE else None
        self.name(at, (source[0], source[1], back), (target[0], target[1], moved))
        step = re.match(r"^step-(\d+)$", target[1])
        if step:
            self.promised.append((self.changes[-1], int(step.group(1))))

    def promise(self, cut):
        """The newest step whose checkpoint was durable under its name."""
        return max(
            [step for change, step in self.promised if change.durable is not None and change.durable < cut]
            or [-1]
        )

    def kept(self, cut, mode, random_):
        """The changes that are there after a cut after that many records."""
        point = random_.randint(0, cut)
        for c in self.changes:
            if c.at >= cut:
                break
            if c.durable is not None and c.durable < cut:
                yield c
            elif mode == "ordered" and c.at < point or mode == "random" and random_.random() < 0.5:
                yield c

    def tree(self, changes):
        """{path: bytes, or None for a directory}."""
        names, files = {}, {}
        for c in changes:
            for directory, name, node in c.names or ():
                at = names.setdefault(id(directory), dict(directory.names))
                if node is None:
                    at.pop(name, None)
                else:
                    at[name] = node
            if c.write:
                node, offset, data = c.write
                held = files.setdefault(id(node), bytearray(node.data))
                if len(held) < offset:
                    held.extend(bytes(offset - len(held)))
                held[offset : offset + len(data)] = data
            if c.length:
                node, length = c.length
                held = files.setdefault(id(node), bytearray(node.data))
                del held[length:]
                held.extend(bytes(length - len(held)))
        out = {}

        def walk(node, path):
            for name, child in sorted(names.get(id(node), node.names).items()):
                full = os.path.join(path, name)
                out[full] = None if child.directory else bytes(files.get(id(child), child.data))
                if child.directory:
                    walk(child, full)

        walk(self.root, "")
        return out


def write_tree(tree, area):
    shutil.rmtree(area, ignore_errors=True)
    os.makedirs(area)
    for path, data in tree.items():
        full = os.path.join(area, path)
        if data is None:
            os.makedirs(full, exist_ok=True)
        else:
            with open(full, "wb") as f:
                f.write(data)


def hashed(tree):
    h = hashlib.sha256()
    for path, data in sorted(tree.items()):
        h.update(path.encode() + b"\0" + (b"/" if data is None else hashlib.sha256(data).digest()))
    return h.digest()


def judge(command, journal, area, shim, cut):
    """What is wrong with the state in which a command's area was found."""
    wrong = []
    ended = cut == journal.count
    if isinstance(command, Train):
        promised = max(journal.promise(cut), getattr(command, "step", -1))
        if promised >= 0 and not os.path.isdir(area + "/run"):
            wrong.append("the run is gone, and its checkpoint of step %d" % promised)
    else:
        wrong += command.between(area, shim, False)
        lost = differ(command.want, command.result(area)) if ended else []
        if lost:
            wrong.append("the command had ended well, but %s is lost" % ", ".join(lost))
    before = len(starts(area + "/run"))
    code, said = command.again(area, shim)
    if code != 0:
        wrong.append(
            "%s: exit %s, %s" % ("resume" if isinstance(command, Train) else "again", code, last_line(said))
        )
        return wrong
    if isinstance(command, Train):
        begun = starts(area + "/run")[before:]
        if not wrong and begun and begun[-1] < promised:
            wrong.append("resumes from step %d, before the checkpoint of step %d" % (begun[-1], promised))
    other = differ(command.want, command.result(area))
    if other:
        wrong.append("then makes another %s" % ", ".join(other))
    return wrong


def states(journal, limit):
    """(cut, mode, draw) to try; all that differ where there is no limit."""
    modes = [("strict", 0), ("ordered", 0)] + [("random", draw) for draw in range(4)]
    every = [(cut,) + mode for cut in range(journal.count + 1) for mode in modes]
    if limit and len(every) > limit:
        every = [(journal.count, "strict", 0)] + random.Random(SEED).sample(every, limit - 1)
    tried, chosen = set(), []
    for state in every:
        key = (hashed(tree_of(journal, *state)), journal.promise(state[0]), state[0] == journal.count)
        if key not in tried:
            tried.add(key)
            chosen.append(state)
    return chosen


def tree_of(journal, cut, mode, draw):
    return journal.tree(journal.kept(cut, mode, random.Random("%s %d %s %d" % (SEED, cut, mode, draw))))


def disk_tree(area):
    out = {}
    for where, directories, files in os.walk(area):
        for name in directories:
            out[os.path.relpath(os.path.join(where, name), area)] = None
        for name in files:
            with open(os.path.join(where, name), "rb") as f:
                out[os.path.relpath(os.path.join(where, name), area)] = f.read()
    return out


def written_down(command, shim, area):
    """The journal of an undisturbed run, proved: all of its changes make what is on the disk."""
    copy(command.template, area)
    journal = Journal(area)
    r = shim.run(command.argv, area, [area], log_bytes=1 << 28)
    if r.code != 0 or r.log_lost:
        sys.exit("%s, written down: exit %s, %d changes lost\n%s" % (command.name, r.code, r.log_lost, r.err))
    command.want = command.result(area)
    journal.read(r.log)
    there, replayed = disk_tree(area), journal.tree(journal.changes)
    if there != replayed:
        differ_in = [p for p in set(there) | set(replayed) if there.get(p, 0) != replayed.get(p, 0)]
        sys.exit(
            "%s: what was written down is not what happened: %s"
            % (command.name, " ".join(sorted(differ_in)[:5]))
        )
    return journal


def replay(command, journal, shim, chosen):
    """How many violations."""
    violations = 0
    for cut, mode, draw in chosen:
        area = shim.work + "/area"
        write_tree(tree_of(journal, cut, mode, draw), area)
        for w in judge(command, journal, area, shim, cut):
            violations += 1
            print("power: %s, cut %d of %d, %s: %s" % (command.name, cut, journal.count, mode, w), flush=True)
    return violations


def main():
    library, meopt, source, work = sys.argv[1:5]
    long_form = os.environ.get("MEOPT_LONG") == "1"
    only = os.environ.get("MEOPT_FAULT_COMMANDS", "").split()
    times = float(os.environ.get("MEOPT_FAULT_TIMES", "1"))
    shim = Shim(library, meopt, work)
    train = make_area(shim, source)
    area, total, table = work + "/area", 0, []
    for command in commands(shim, train):
        if isinstance(command, Attach) or only and command.name not in only:
            continue
        journal = written_down(command, shim, area)
        chosen = states(journal, 0 if long_form else int(command.cases * times) // 2)
        violations = sum(
            shared_out(shim, chosen, lambda own, some: replay(command, journal, own, some))
        )
        table.append((command.name, journal.count, len(chosen), violations))
        total += violations
    print("%-10s %8s %8s %10s" % ("power cut", "changes", "states", "violations"))
    for row in table:
        print("%-10s %8d %8d %10d" % row)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
