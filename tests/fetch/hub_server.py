"""A stand-in for Hugging Face Hub and ModelScope on one port, and the host of its large files on another one.
hub_server.py PORTS LOG: writes both ports, then a line per request: hub|cdn METHOD PATH TOKEN RANGE BUSY, with the number of requests that
are answered at that time. The name of a repository says what is wrong with it."""
import hashlib, json, os, random, re, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

commit = "0123456789abcdef0123456789abcdef01234567"
big = random.Random(1).randbytes(3000000)
files = {"config.json": b'{"a": 1}\n', "sub/dir/vocab.txt": b"one\ntwo\n", "model.safetensors": big, "empty": b""}
parts = {"part-%d.safetensors" % i: random.Random(i + 2).randbytes(3000000 + i) for i in range(6)}
parts["copy.safetensors"] = parts["part-0.safetensors"]
small = {"data/%03d.json" % i: b"%d\n" % i for i in range(40)}
small["data/copy.json"] = small["data/000.json"]
huge = {"huge.safetensors": b"0123456789abcde\n" * (1 << 23)}  # two ranges of 64 MiB
log = open(sys.argv[2], "a", buffering=1)
busy = {"count": 0}
names = {"up": "../x", "absolute": "/tmp/x", "nul": "a\0b", "dots": "a/../../x"}
state = {"busy": 0, "limited": 0.0}
lock = threading.RLock()
sums = {}
used = set()


def sum_of(kind, data):
    key = kind, len(data), hash(data)
    if key not in sums:
        sums[key] = hashlib.new(kind, data).hexdigest()
    return sums[key]


def content(repo):
    """Files of a repository: part... has large ones, many... small ones."""
    return dict(small, **parts) if repo.startswith("all") else parts if repo.startswith("part") else small if repo.startswith("many") else huge if repo == "huge_file" else files


def oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path, data):
    e = {"type": "file", "oid": oid(data), "size": len(data), "path": path}
    if path.endswith(".safetensors"):
        e["lfs"] = {"oid": sum_of("sha256", data), "size": len(data), "pointerSize": 132}
    return e


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def count_ended(self):
        """Called before the last bytes of an answer are sent: their receiver may make the next request."""
        with lock:
            state["busy"] -= self.busy
        self.busy = 0

    def answer(self, status, body=b"", **headers):
        self.count_ended()
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def setup(self):
        super().setup()
        log.write("connection\n")

    def data(self, data):
        if "endless" in self.path:  # no length, no end
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")
                log.write("endless\n")
        etag = '"%s"' % sum_of("md5", data)
        m = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        if "noranges" in self.path or not m and (self.server is servers[0] or not re.search("kill|expires", self.path)):
            return self.answer(200, data, ETag=etag)
        a, b = (int(m[1]), int(m[2] or len(data) - 1)) if m else (0, len(data) - 1)
        if m and a >= len(data):
            return self.answer(416, Content_Range="bytes */%d" % len(data))
        b = min(b, len(data) - 1)
        self.send_response(206 if m else 200)
        self.send_header("ETag", etag)
        if m:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (a, b, len(data)))
        self.send_header("Content-Length", str(b + 1 - a))
        self.end_headers()
        step = 32768 if "kill" in self.path else 1 << 20
        for at in range(a, b + 1, step):
            if at + step > b:
                self.count_ended()
            self.wfile.write(data[at : min(at + step, b + 1)])
            if "kill" in self.path:
                time.sleep(0.02)
                log.write("sent %d of %s\n" % (at + step, self.path))
            if "expires" in self.path and at == a:  # the connection is lost, and the address is not valid again
                self.close_connection = True
                return self.connection.shutdown(2)

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass

    def moved(self, repo, path):
        """Redirects to the other host, with an address that differs each time."""
        where = "http://127.0.0.1:%d/%s/%s?signature=%d" % (ports[1], repo, path, random.getrandbits(32))
        return self.answer(302, Location=where)

    def modelscope(self, path, query):
        m = re.match(r"/api/v1/(models|datasets)/me/([\w.]+)/repo(/files|/tree)?$", path)
        cookie = "m_session_id=" + self.headers.get("Authorization", "")[7:]
        if not m or m[2] == "missing" or query.get("Revision") not in ("master", "v1/x"):
            return self.answer(404, json.dumps({"Code": 404, "Message": "not found", "Success": False}).encode())
        if m[2] == "private" and (self.headers.get("Cookie", "") != cookie or not self.headers.get("Authorization")):
            return self.answer(403, b"{}")
        stored = dict(content(m[2]))
        if m[2] == "moved":
            stored["config.json"] = b'{"a": 2}\n' if os.path.exists("moved") else b'{"a": 1}\n'
        if m[3]:
            page = [{"Type": "tree", "Path": "sub", "Size": 0, "Sha256": ""}]
            page += [{"Type": "blob", "Path": p, "Size": len(d), "Sha256": sum_of("sha256", d)} for p, d in stored.items()]
            if m[2] in names:
                page[1]["Path"] = names[m[2]]
            if m[2] == "bare":
                del page[1]["Sha256"]
            if m[2] == "many":
                page *= 600
            if m[1] == "datasets":  # 450 entries in pages of 200
                page += [dict(page[1], Path="part/%d.json" % i) for i in range(450 - len(page))]
                at = (int(query["PageNumber"]) - 1) * int(query["PageSize"])
                page = page[at : at + int(query["PageSize"])]
            return self.answer(200, json.dumps({"Code": 200, "Data": {"Files": page}, "Success": True}).encode())
        if query.get("FilePath") not in stored:
            return self.answer(404, b"{}")
        if query["FilePath"].endswith(".safetensors"):
            return self.moved(m[2], query["FilePath"])
        self.data(b"changed!\n" if m[2] == "changed" else stored[query["FilePath"]])

    def cdn(self):
        m = re.match(r"/([\w.]+)/([^?]*)", self.path)
        if not m:
            return self.answer(404)
        if m[1].endswith("expires"):
            if self.path in used:
                return self.answer(403)
            used.add(self.path)
        data = content(m[1])[m[2]]
        if "wrong" in m[1] and m[2] in ("model.safetensors", "part-3.safetensors") and not os.path.exists("repaired"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.data(data[:132] if m[1] == "pointer" else data)

    def resolve(self, repo, path):
        if repo.endswith("denied") and path == "data/020.json" and not os.path.exists("repaired"):
            return self.answer(403, X_Error_Code="GatedRepo")
        if repo.endswith("limited"):  # one request is told to wait; the others wait as well
            with lock:
                since = time.time() - state["limited"]
                if path == "data/020.json" and not state["limited"]:
                    state["limited"] = time.time()
                    return self.answer(429, RateLimit='"resolvers";r=0;t=2')
            if 0.5 < since < 1.9:
                log.write("early %s %s\n" % (path, since))
        if path.endswith(".safetensors"):
            return self.moved(repo, path)
        self.data(b"changed!\n" if repo == "changed" and path == "config.json" else content(repo)[path])

    def api(self, repo, what, revision):
        if repo == "gated":
            return self.answer(403, X_Error_Code="GatedRepo")
        if repo == "missing":
            return self.answer(401, X_Error_Code="RepoNotFound")
        if what == "revision" and revision not in ("main", "refs%2Fpr%2F1", commit):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if repo == "busy" and busy["count"] < 2:
            busy["count"] += 1
            return self.answer(429 if busy["count"] == 1 else 503, Retry_After="0")
        if what == "revision":
            return self.answer(200, json.dumps({"sha": commit}).encode())
        if repo == "nodes":
            return self.answer(200, b"[" + b"{}," * (62 << 20 >> 2) + b"{}]")
        if repo in ("nopage", "onepage"):  # pages without end
            log.write("page\n")
            page = [entry("f%d" % random.getrandbits(60), b"") for _ in range(repo == "onepage")]
            link = '<http://%s%s?cursor=%d>; rel="next"' % (self.headers["Host"], self.path.split("?")[0], random.getrandbits(60))
            return self.answer(200, json.dumps(page).encode(), Link=link)
        page = [entry(p, d) for p, d in content(repo).items()]
        if repo in names:
            page[0]["path"] = names[repo]
        if repo == "lies":
            page[2]["lfs"]["size"] += 1
        if repo == "huge":
            page[2]["lfs"]["size"] = 1 << 60
        if "cursor=" in self.path:
            return self.answer(200, json.dumps(page[2:]).encode())
        host = "https://huggingface.co" if repo == "mirror" else "http://" + self.headers["Host"]
        link = '<%s%s&cursor=2>; rel="next"' % (host, self.path)
        return self.answer(200, json.dumps(page[:2]).encode(), Link=link)

    def do_GET(self):
        hub = self.server is servers[0]
        with lock:
            state["busy"] += 1
            self.busy = 1
            log.write("%s %s %s %s %s %d\n" % ("hub" if hub else "cdn", self.command, self.path,
                      (self.headers.get("Authorization", "-") + self.headers.get("Cookie", "")).replace(" ", "_"), self.headers.get("Range", "-"), state["busy"]))
        try:
            self.route(hub)
        finally:
            self.count_ended()

    def route(self, hub):
        path = self.path.split("?")[0]
        if "slow" in path:
            time.sleep(0.05)
        if not hub:
            return self.cdn()
        if path.startswith("/api/v1/"):
            return self.modelscope(path, {k: v[0] for k, v in urllib.parse.parse_qs(self.path.partition("?")[2]).items()})
        m = re.match(r"/api/(?:models|datasets)/me/(\w+)/(revision|tree)/(.+)$", path)
        if m:
            return self.api(m[1], m[2], m[3])
        m = re.match(r"/(?:datasets/)?me/(\w+)/resolve/%s/(.+)$" % commit, path)
        if not m or m[2] not in content(m[1]):
            return self.answer(404, X_Error_Code="EntryNotFound")
        self.resolve(m[1], m[2])

    do_HEAD = do_GET


class Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True


servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
ports = [s.server_address[1] for s in servers]
open(sys.argv[1] + ".new", "w").write("%d %d\n" % tuple(ports))
os.rename(sys.argv[1] + ".new", sys.argv[1])
threading.Thread(target=servers[1].serve_forever, daemon=True).start()
servers[0].serve_forever()
