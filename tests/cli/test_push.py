"""raysearch export --push uploads an export, here to a simulated hub that keeps commits in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.cli.conftest import Run, World
from tests.faults.injection import refused
from tests.models.conftest import write_llama


@dataclass
class Hub:
    """A hub: its repositories, and an answer to everything that is set for a test."""

    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)  # by method
    tokens: set[str | None] = field(default_factory=set)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a request as the hub does."""
        if method in self.status:
            return self.status[method], {"error": "no"}
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}"
            self.private[name] = request["visibility"] == "private"
            self.files[name] = {".gitattributes": b""}
            return 200, {"url": f"{self.url}/{name}"}
        if path == "/api/validate-yaml":  # of the card
            return 200, {"errors": [], "warnings": []}
        name = "/".join(path.removeprefix("/api/models/").split("?")[0].split("/")[:2])
        if name not in self.files:
            return 404, {"error": f"{path} is not found"}
        if "/preupload/" in path:
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            return 200, {"files": modes}
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.files[name][line["value"]["path"]]
            return 200, {"commitUrl": f"{self.url}/{name}/commit/0", "commitOid": "0", "success": True}
        siblings = [{"rfilename": file} for file in self.files[name]]
        return 200, {"id": name, "modelId": name, "sha": "0", "private": self.private[name], "siblings": siblings}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.tokens.add(self.headers.get("Authorization"))
            status, answer = hub.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_atokenofatest12345")
    yield hub
    server.shutdown()
    server.server_close()


def test_a_checkpoint_is_sent_private_and_replaced_on_demand(run: Run, world: World, cwd: Path, hub: Hub) -> None:
    assert run("search", *world.search()).code == 0
    send = ("export", "latest", "--push", "me/small")
    done = run(*send, "--out", "one")
    assert done.code == 0, done.err
    assert f"Sent to {hub.url}/me/small (private)." in done.out, done.err
    assert hub.private == {"me/small": True}
    assert hub.tokens - {None} == {"Bearer hf_atokenofatest12345"}
    sent = hub.files["me/small"]
    assert {name: content for name, content in sent.items() if name != ".gitattributes"} == {
        file.name: file.read_bytes() for file in (cwd / "one").iterdir()
    }
    refused(run(*send, "--out", "two"), "--push=me/small is there already; name another repository, or replace it with")
    assert not (cwd / "two").exists(), "it is known beforehand"
    sent["stale.safetensors"] = b""
    replaced = run(*send, "--out", "two", "--remove", 1, "--overwrite", "--json")
    assert json.loads(replaced.out)["url"] == f"{hub.url}/me/small"
    assert len(json.loads(sent["raysearch.json"])["mask"]) == 1
    assert "stale.safetensors" not in sent
    refused(run(*send, "--out", "three", "--overwrite", "--public"), "is there already and private; leave out --public")
    hub.files["me/small"] = {"model.safetensors": b"of someone"}
    refused(run(*send, "--out", "three", "--overwrite"), "holds other things than an export; name another repository")


def test_a_gguf_file_is_sent_with_a_card(run: Run, world: World, cwd: Path, hub: Hub) -> None:
    (folder := cwd / "secret-folder").mkdir()
    model = write_llama(folder / "tiny-llama.gguf")
    assert run("search", *world.search(model=model)).code == 0
    done = run("export", "latest", "--gguf", "small.gguf", "--push", "me/small-gguf", "--public")
    assert done.code == 0, done.err
    assert f"Sent to {hub.url}/me/small-gguf (public)." in done.out, done.err
    assert hub.private == {"me/small-gguf": False}
    sent = hub.files["me/small-gguf"]
    assert sent["small.gguf"] == (cwd / "small.gguf").read_bytes()
    card = sent["README.md"].decode()
    assert "| layers | 4 | 2 |" in card
    assert "| runtime | checked | command |" in card
    assert "layers 0 to 3: █ kept, · removed" in card
    assert len(json.loads(sent["raysearch.json"])["mask"]) == 2
    assert "# tiny-llama without 2 of its 4 layers" in card.replace("\\", "")
    assert not any(b"secret-folder" in sent[name] for name in ("README.md", "raysearch.json")), "nobody else has it"


def test_a_refusal_of_the_hub_is_one_sentence_and_the_export_stays(
    run: Run, world: World, cwd: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("search", *world.search()).code == 0
    send = ("export", "latest", "--push", "me/small", "--out")

    hub.status = {"POST": 403}
    refused(
        run(*send, "made"), "403 Forbidden", "that the token may write there; made is written, so only this is left"
    )
    assert (cwd / "made" / "config.json").is_file()
    hub.status = {"GET": 401}
    refused(run(*send, "x"), "401 Unauthorized", "check the network, and that the token may write there")
    with monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        refused(run(*send, "x"), "cannot be written (ConnectError", "check the network")
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        refused(run(*send, "x"), "offline", "check the network")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cwd / "none"))
    refused(run(*send, "x"), "needs a token of the hub; set HF_TOKEN, or log in with: hf auth login")
    for name in ("small", "a b/c"):
        refused(run("export", "latest", "--out", "x", "--push", name), "names no repository; write OWNER/NAME")
    refused(run("export", "latest", "--out", "x", "--public"), "--public is of a repository of the hub; name it with")
    assert not (cwd / "x").exists()
