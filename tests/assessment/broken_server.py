"""A server that answers requests for completions wrongly, in the way that its first argument names."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Lists one model, and breaks off."""

    fault = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        names = ["one", "two"] if self.fault == "lists two models" else ["one"]
        self.wfile.write(json.dumps({"data": [{"id": name} for name in names]}).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refuses = self.fault == "refuses"
        self.send_response(400 if refuses else 200)
        self.end_headers()
        if refuses:
            self.wfile.write(b'{"error": "no such model"}')
        elif self.fault == "answers an error":
            self.say({"error": {"message": "out of memory"}})
        elif self.fault == "answers no JSON":
            self.wfile.write(b"data: <html>\n\n")
        else:
            self.say({"choices": [{"text": "a", "finish_reason": None}]})
            if self.fault == "answers too few tokens":
                self.say({"choices": [], "usage": {"prompt_tokens": len(request["prompt"]), "completion_tokens": 1}})

    def say(self, content: Any) -> None:
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def main() -> None:
    fault, *arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write("version: 1")
        return
    if fault == "ends":
        sys.stdout.write("loading the model\n")
        raise ValueError("unknown model architecture")
    if fault == "hangs":
        sys.stderr.write("loading the model\n")
        time.sleep(600)
    if fault == "has a child":
        subprocess.Popen(["sleep", "600"])
    Handler.fault = fault
    port = int(arguments[arguments.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
