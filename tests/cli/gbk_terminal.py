"""gbk_terminal.py COMMAND...: runs a command in a terminal whose encoding is GBK, inside one whose encoding is UTF-8.

Terminals in GBK show every character of two bytes in two columns, also those that Unicode calls ambiguous, such as quotation marks. The outer
terminal shows these in one column, so that a wide character stands for them.
"""
import codecs
import fcntl
import os
import pty
import sys
import termios
import tty
import unicodedata

pid, master = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
tty.setraw(0)
if os.fork() == 0:  # keys: ASCII
    while data := os.read(0, 1000):
        os.write(master, data)
    os._exit(0)
decode = codecs.getincrementaldecoder("gbk")("replace").decode
try:
    while data := os.read(master, 65536):
        sys.stdout.write("".join("\u3013" if unicodedata.east_asian_width(c) == "A" else c for c in decode(data)))
        sys.stdout.flush()
except OSError:
    pass
os.waitpid(pid, 0)
