"""`census shapes hf:...` against a hub on this machine: only beginnings of files are asked for."""

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from analysis import cli
from census import remote
from minfer.gguf import open_gguf

hub_client = pytest.importorskip("huggingface_hub")
MEGABYTE = 1 << 20


class Hub(BaseHTTPRequestHandler):
    """What the hub's client asks of it: the repository, its tree, paths in it, ranges of files."""

    def __init__(self, files, asked, *args):
        self.files, self.asked = files, asked
        super().__init__(*args)

    def log_message(self, *args):
        pass

    def entries(self):
        return [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, (_, size) in self.files.items()]

    def answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        paths = json.loads(body)["paths"] if body[:1] == b"{" else re.findall(r"paths=([^&]*)", unquote(body.decode()))
        self.answer([e for e in self.entries() if e["path"] in paths])

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/org/repo/tree"):
            self.answer(self.entries())
        elif path.startswith("/api/models/org/repo"):
            self.answer({"id": "org/repo", "modelId": "org/repo", "sha": "0" * 40, "siblings": [], "private": False})
        elif path.startswith("/org/repo/resolve/main/"):
            self.range(path.removeprefix("/org/repo/resolve/main/"))
        else:
            self.answer({"error": "Repository not found"}, 404)

    def range(self, name):
        data, size = self.files[name]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        self.asked.append((name, first, last))
        body = data[first : last + 1].ljust(min(last + 1, size) - first, b"\0")
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    files, asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, files, asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(remote, "_filesystem", lambda spec: hub_client.HfFileSystem(
        endpoint=endpoint, token=False, skip_instance_cache=True, use_listings_cache=False))  # fmt: skip
    yield files, asked
    server.shutdown()
    server.server_close()


def census(args, capsys):
    code = cli.run([str(a) for a in args])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_only_the_beginning_is_fetched(hub, qwen2_7b_header, capsys):
    files, asked = hub
    files["q/7b-q4_k_m.gguf"] = (qwen2_7b_header.read_bytes(), 4_683_000_000)
    files["README.md"] = (b"x", 1)
    code, out, err = census(["shapes", "hf:org/repo", "--type", "Q6_K", "--json"], capsys)
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(r["file"], r["role"], r["elements"]) for r in rows][1] == (
        "hf:org/repo:q/7b-q4_k_m.gguf", "attn_v", 1_835_008)  # fmt: skip
    assert sum(last + 1 - first for _, first, last in asked) == 8 * MEGABYTE


def test_a_longer_header_is_fetched_on(hub, qwen2_7b_header, capsys, monkeypatch):
    files, asked = hub
    monkeypatch.setattr(remote, "FIRST", MEGABYTE)  # the header has 5.7
    files["m.gguf"] = (qwen2_7b_header.read_bytes(), 4_683_000_000)
    code, out, err = census(["shapes", "hf:org/repo:*.gguf", "--json"], capsys)
    assert code == 0 and len(json.loads(out)["rows"]) == 11, err
    steps = [(first // MEGABYTE, (last + 1) // MEGABYTE) for _, first, last in asked]
    assert steps == [(0, 1), (1, 2), (2, 4), (4, 8)]  # no byte twice


def test_a_split_model_is_one(hub, tmp_path, capsys):
    files, _ = hub
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=1, small_first_shard=False)
    writer.add_block_count(1)
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        writer.add_tensor(name, np.zeros((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 2
    for part in parts:
        files[part.name] = (part.read_bytes(), part.stat().st_size)
    with open_gguf(parts[0]) as whole:
        names = {t.split(".")[2] for t in whole.tensors}
    code, out, err = census(["shapes", "hf:org/repo", "--json"], capsys)
    assert code == 0, err
    assert {r["role"] for r in json.loads(out)["rows"]} == names == {"attn_q", "attn_k"}


def test_a_damaged_file_there_is_one_line(hub, capsys):
    hub[0]["bad.gguf"] = (b"GGML" + bytes(100), 104)
    code, out, err = census(["shapes", "hf:org/repo"], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("census: hf:org/repo:bad.gguf: not a GGUF file")


@pytest.mark.parametrize("spec, said", [
    ("hf:org", "not a hub repository"), ("hf:org/repo:*q9*", "no .gguf file"), ("hf:other/repo", "did not give it"),
])  # fmt: skip
def test_mistakes_are_one_line(spec, said, hub, capsys):
    hub[0]["m.gguf"] = (b"GGUF", 4)
    code, out, err = census(["shapes", spec], capsys)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_no_hub_and_no_client_are_one_line(monkeypatch, capsys):
    gone = partial(hub_client.HfFileSystem, endpoint="http://127.0.0.1:9", token=False, skip_instance_cache=True)
    with monkeypatch.context() as patch:
        patch.setattr(remote, "_filesystem", lambda spec: gone())
        code, _, err = census(["shapes", "hf:org/repo"], capsys)
        assert code == 2 and "did not give it" in err and err.count("\n") == 1
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    code, _, err = census(["shapes", "hf:org/repo"], capsys)
    assert code == 2 and "pip install 'launch-census[hf]'" in err
