#!/usr/bin/env python3
"""A web server that misbehaves on purpose, for tests/fetch/fetch_server.sh: server.py FILE OTHER PORT_FILE LOG.
The path says how: /MODE/name. FILE is what it serves, OTHER another archive of another size. LOG gets a line per request:
MODE RANGE STATUS BYTES."""
import http.server
import os
import re
import sys
import threading
import time

data = open(sys.argv[1], "rb").read()
other = open(sys.argv[2], "rb").read()
log = open(sys.argv[4], "a", buffering=1)
counts = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body, headers=(), length=True, stop_at=None, hang=False):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        part = body if stop_at is None else body[:stop_at]
        sent = 0
        try:
            if length:
                for at in range(0, len(part), 65536):
                    self.wfile.write(part[at:at + 65536])
                    sent += len(part[at:at + 65536])
            else:
                for at in range(0, len(part), 65536):
                    piece = part[at:at + 65536]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    sent += len(piece)
                self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
            if hang:
                time.sleep(20)
        except (BrokenPipeError, ConnectionResetError):
            pass
        if stop_at is not None or hang:
            self.close_connection = True
        log.write("%s %s %d %d\n" % (self.mode, self.headers.get("Range", "-"), status, sent))

    def ranged(self, body, etag, shift=0, total=None, **how):
        """Ranges as they should be, with If-Range; `shift` and `total` lie."""
        headers = [("ETag", etag)] if etag else []
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if not match or (condition and condition != etag):
            return self.send(200, body, headers, **how)
        start = int(match[1])
        end = min(int(match[2]) if match[2] else len(body) - 1, len(body) - 1)
        if start >= len(body):
            return self.send(416, b"", [("Content-Range", "bytes */%d" % len(body))])
        headers.append(("Content-Range", "bytes %d-%d/%d" % (start + shift, end + shift, total or len(body))))
        self.send(206, body[start:end + 1], headers, **how)

    def do_GET(self):
        self.mode = mode = self.path.split("/")[1]
        with lock:
            n = counts[mode] = counts.get(mode, 0) + 1
        third = len(data) // 3
        probe = self.headers.get("Range") == "bytes=0-0"
        if mode == "ok":
            self.ranged(data, '"one"')
        elif mode == "ignore-range":
            self.send(200, data, [("ETag", '"one"')])
        elif mode == "ignore-range-short":  # no ranges, and the first two bodies are cut
            self.send(200, data, [("ETag", '"one"')], stop_at=None if probe or n > 4 else third)
        elif mode == "short":  # every body ends after a third: must be pieced together
            self.ranged(data, '"one"', stop_at=None if probe else third)
        elif mode == "weak":  # cut, and nothing strong to recognise the file by
            self.ranged(data, 'W/"weak"', stop_at=None if probe or n > 3 else third)
        elif mode == "changed":  # another file after the first cut
            if n <= 2:
                self.ranged(other, '"old"', stop_at=None if probe else len(other) // 2)
            else:
                self.ranged(data, '"new"')
        elif mode == "changed-same-tag":  # same ETag, other total in Content-Range
            if n <= 2:
                self.ranged(other, '"one"', stop_at=None if probe else len(other) // 2)
            else:
                self.ranged(data, '"one"')
        elif mode == "wrong-range":
            if probe or "Range" not in self.headers:
                self.ranged(data, '"one"', stop_at=None if probe else third)
            else:
                self.ranged(data, '"one"', shift=7)
        elif mode == "wrong-total":
            self.ranged(data, '"one"', total=None if n <= 2 else len(data) + 99, stop_at=third if n == 2 else None)
        elif mode in ("stall", "stall-early"):  # sends a third or little, then nothing
            part = third if mode == "stall" else 1000
            self.ranged(data, '"one"', stop_at=None if probe or n > 2 else part, hang=n == 2)
        elif mode == "busy":
            if n <= 2:
                self.send(503, b"<html>busy</html>", [("Retry-After", "1")])
            else:
                self.ranged(data, '"one"')
        elif mode == "too-many":
            if n == 2:
                self.send(429, b"<html>slow down</html>", [("Retry-After", "1")])
            else:
                self.ranged(data, '"one"')
        elif mode == "shrunk":  # answers 416 to a continuation, then all is well
            if n == 2:
                self.ranged(data, '"one"', stop_at=third)
            elif n == 3:
                self.send(416, b"", [("Content-Range", "bytes */5")])
            else:
                self.ranged(data, '"one"')
        elif mode == "redirect":
            self.send(302, b"", [("Location", "/ok/redirected")])
        elif mode == "redirect-loop":
            self.send(302, b"", [("Location", "/redirect-loop/again")])
        elif mode == "redirect-file":
            self.send(302, b"", [("Location", "file:///etc/passwd")])
        elif mode == "chunked":  # no length at all
            self.send(200, data, length=False)
        elif mode == "gone":
            self.send(410, b"<html>gone</html>")
        elif mode == "missing":
            self.send(404, b"<html>not found</html>")
        elif mode == "forbidden":
            self.send(403, b"<html>no</html>")
        elif mode == "page":  # an error page with 200
            self.send(200, b"<html>please log in</html>")
        elif mode == "never-whole":  # no ranges, and every body is cut
            self.send(200, data, [("ETag", '"one"')], stop_at=None if probe else third)
        elif mode == "dribble":  # one byte at a time
            self.ranged(data, '"one"', stop_at=None if probe else 1)
        elif mode == "always-new":  # another file each time, cut
            self.ranged(data, '"%d"' % n, stop_at=None if probe else third)
        elif mode in ("huge", "endless"):  # says that it is larger than any disk, than any number
            self.send_response(200)
            self.send_header("Content-Length", "999999999999999999" if mode == "huge" else "9223372036854775807")
            self.end_headers()
            self.wfile.write(data[:third])
            self.close_connection = True
            log.write("%s - 200 %d\n" % (mode, third))
        elif mode == "dead":  # always breaks before the first byte
            if probe:
                self.ranged(data, '"one"')
            else:
                self.close_connection = True
        elif mode == "encoding":  # wants to compress
            self.ranged(data, '"one"')
            if "Accept-Encoding" in self.headers:
                log.write("accept-encoding sent\n")
        else:
            self.send(404, b"")


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, address):  # a client that hangs up is what is tested
        pass


server = Server(("127.0.0.1", 0), Handler)
server.daemon_threads = True
with open(sys.argv[3] + ".new", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(sys.argv[3] + ".new", sys.argv[3])
server.serve_forever()
