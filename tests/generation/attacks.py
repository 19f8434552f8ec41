"""Programs that try to pass a test that they fail, or to change the machine; ``assert False`` follows each program."""

import contextlib
from pathlib import Path

#: Programs that end without an error, or claim that they passed.
CHEATS = {
    "leave at once": "import os; os._exit(0)",
    "leave politely": "import sys; sys.exit(0)",
    "raise what is no Exception": "raise KeyboardInterrupt",
    "print the marker": "print('passed'); print('PASS', flush=True)",
    "report by any file": """
import os
for file in range(3, 64):
    try: os.write(file, b"0" * 32)
    except OSError: pass
os._exit(0)""",
    "claim that the sandbox failed": """
import os
for file in range(3, 64):
    try: os.write(file, b"sandbox\\0it is not to be had")
    except OSError: pass
os._exit(0)""",
    "close every file": "import os; os.closerange(0, 64)",
    "report for good, then close": """
import os
for f in range(3, 64):
    try: os.write(f, b'x' * 9000); os.close(f)
    except OSError: pass""",
    "run the runner again": "import sys; sys.modules['__main__'].main()",
    "replace what the runner calls": """
import builtins, os
os.write = lambda *rest: 0
builtins.compile = builtins.exec = lambda *rest: None""",
    "unpickle an exit": """
import os, pickle
class Exit:
    def __reduce__(self): return os._exit, (0,)
pickle.loads(pickle.dumps(Exit()))""",
    "leave when the interpreter ends": "import atexit, os; atexit.register(os._exit, 0)",
    "leave by a signal": """
import os, signal; signal.signal(14, lambda *rest: os._exit(0)); signal.setitimer(0, 0.001)
while True: pass""",
    "leave by an alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.001)\nwhile True: pass",
    "crash": "import faulthandler; faulthandler._sigsegv()",
    "recurse": "def f(): f()\nf()",
    "recurse without a limit": """
import sys; sys.setrecursionlimit(10**9)
def f(x): return [f](*[x])[0] if 0 else f(x + 1)
f(0)""",
    "quit in str": "class E(Exception):\n    def __str__(self): import os; os._exit(0)\nraise E",
    "close the tests' brackets": '"""',
}

#: Programs that would take a quarter of a minute to end, so that their time limit ends them.
ENDED_BY_TIME = {"recurse without a limit"}

#: Programs that act beyond their process.
ESCAPES = {
    "fork": "import os; os.fork()",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError as error: raise SystemExit from error",
    "forkpty": "import os; os.forkpty()",
    "a daemon": "import os; os.setsid()",
    "a group of its own": "import os; os.setpgid(0, 0)",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "posix_spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "system": "import os; assert os.system('true') == 0, 'refused'; open('SENTINEL', 'w')",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "multiprocessing": "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "kill the starter": "import os; os.kill(os.getppid(), 9)",
    "kill everybody": "import os; os.kill(-1, 9)",
    "kill the group": "import os; os.killpg(0, 15)",
    "kill by a file": "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
    "slow the starter down": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "move the starter": "import os; os.sched_setaffinity(os.getppid(), {0})",
    "limit the starter": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "socket": "import socket; socket.socket()",
    "local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "connect": "import socket; socket.create_connection(('127.0.0.1', 22))",
    "web": "import urllib.request; urllib.request.urlopen('http://127.0.0.1')",
    "write a file": "open('SENTINEL', 'w').write('gone')",
    "append to a file": "open('SENTINEL', 'a').write('more')",
    "remove a file": "import os; os.remove('SENTINEL')",
    "rename a file": "import os; os.rename('SENTINEL', 'SENTINEL.old')",
    "change its mode": "import os; os.chmod('SENTINEL', 0o777)",
    "change its times": "import os; os.utime('SENTINEL', (0, 0))",
    "shorten it": "import os; os.truncate('SENTINEL', 0)",
    "write by a link": "import os; os.symlink('SENTINEL', 'link'); open('link', 'w').write('gone')",
    "write beside it": "open('SENTINEL.new', 'w')",
    "make a folder": "import os; os.mkdir('SENTINEL.folder')",
    "write to a device": "open('/dev/shm/raysearch-attack', 'w')",
    "remove all": "import shutil; shutil.rmtree('FOLDER')",
    "mount": "import ctypes\nif ctypes.CDLL(None).umount2(b'/', 2): raise OSError",
    "read the starter": "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "memory": "x = bytearray(4 << 30)",
    "memory, bit by bit": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "memory as files": "import os\nfor i in range(60): os.write(os.memfd_create('x'), bytes(1 << 20))",
    "a long file": "f = open('x', 'wb')\nfor i in range(1000): f.write(bytes(1 << 20))",
    "many files": "for i in range(100000): open(str(i), 'w').close()",
    "many long files": "for i in range(1000): open(str(i), 'wb').write(bytes(1 << 20))",
}  # fmt: skip

#: Programs that run until they are stopped.
ENDLESS = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "a loop that ignores signals": """
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass""",
    "a long power": "9 ** 9 ** 9",
    "output": "while True: print('x' * 10000)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "a regular expression": "import re; re.match('(a*)*b', 'a' * 100)",
    "an endless str": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    "waiting for input": "import os, signal; signal.pause()",
}


def running(starter: str = "sandbox_child") -> set[str]:
    """Return the ids of the processes that a script started."""
    processes = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            if starter in file.read_text(errors="replace"):
                processes.add(file.parent.name)
    return processes
