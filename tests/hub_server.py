"""A Hub on 127.0.0.1, as far as huggingface_hub's client needs one: create, commit, LFS, and reading back.

with HubServer(token="hf_x") as hub:  os.environ["HF_ENDPOINT"] = hub.address
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = re.compile(r"^/api/models/([^/]+/[^/]+)/(preupload|commit|revision|tree|branch)/([^/?]+)")
RESOLVE = re.compile(r"^(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


class HubServer:
    """Keeps what is pushed in `repos`: repository id → file → bytes.

    Args:
        token: the one that may write; any other gets 403.
        large: files of this suffix are asked for through LFS.

    A repository whose name holds `stalled` is never answered: its creation waits until the server ends.
    """

    def __init__(self, token: str, large: str = ".safetensors"):
        self.token, self.large = token, large
        self.repos: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.verified: set[str] = set()
        self.requests: list[str] = []
        self.branches: list[str] = []
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def sha(self, repo: str) -> str:
        files = self.repos.get(repo, {})
        listing = json.dumps(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items()))
        return hashlib.sha1(listing.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: bytes | dict = b"", **headers: str) -> None:
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("size", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def do_POST(self):
        body, hub = self.body(), self.hub
        hub.requests.append(f"POST {self.path}")
        if self.path.startswith("/api/validate-yaml"):
            return self.answer(200, {"warnings": [], "errors": []})
        if not self.may_write():
            return self.answer(403, {"error": "You don't have the rights to write here"}, X_Error_Message="forbidden")
        if self.path.endswith("/info/lfs/objects/batch"):
            return self.large_files(json.loads(body)["objects"])
        if self.path == "/lfs-verify":
            entry = json.loads(body)
            assert len(hub.objects[entry["oid"]]) == entry["size"]
            hub.verified.add(entry["oid"])
            return self.answer(200, {})
        if self.path == "/api/repos/create":
            request = json.loads(body)
            if "stalled" in request["name"]:
                hub.over.wait()
                return None
            repo = f"{request.get('organization') or 'me'}/{request['name']}"
            hub.repos.setdefault(repo, {})
            return self.answer(200, {"url": f"{hub.address}/{repo}"})
        match = API.match(self.path)
        if match is None:
            return self.answer(404, {"error": self.path})
        if match[2] == "branch":
            if match[3] in hub.branches:
                return self.answer(409, {"error": "Reference already exists"})
            hub.branches.append(match[3])
            return self.answer(200, {})
        return self.preupload(json.loads(body)) if match[2] == "preupload" else self.commit(match[1], body)

    def large_files(self, wanted: list[dict]) -> None:
        def actions(oid):
            return {
                "upload": {"href": f"{self.hub.address}/lfs/{oid}"},
                "verify": {"href": f"{self.hub.address}/lfs-verify"},
            }

        found = [{**entry, "actions": actions(entry["oid"])} for entry in wanted]
        self.answer(200, {"transfer": "basic", "objects": found})

    def preupload(self, request: dict) -> None:
        def mode(path):
            return "lfs" if path.endswith(self.hub.large) else "regular"

        files = [
            {"path": entry["path"], "uploadMode": mode(entry["path"]), "shouldIgnore": False, "oid": None}
            for entry in request["files"]
        ]
        self.answer(200, {"files": files})

    def commit(self, repo: str, body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.hub.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.hub.repos[repo][value["path"]] = self.hub.objects[value["oid"]]
        sha = self.hub.sha(repo)
        self.answer(200, {"commitUrl": f"{self.hub.address}/{repo}/commit/{sha}", "commitOid": sha})

    def do_PUT(self):
        data, oid = self.body(), self.path.rsplit("/", 1)[1]
        assert hashlib.sha256(data).hexdigest() == oid
        self.hub.objects[oid] = data
        self.answer(200, {})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        if match := RESOLVE.match(path):
            repo, _, name = match.groups()
            data = hub.repos.get(repo, {}).get(name)
            if data is None:
                code = "EntryNotFound" if repo in hub.repos else "RepoNotFound"
                return self.answer(404, {"error": code}, X_Error_Code=code, X_Repo_Commit=hub.sha(repo))
            return self.answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=hub.sha(repo))
        if match := re.match(r"^/api/(?:models|datasets)/([^/]+/[^/]+)(/tree/[^/]+|/revision/[^/]+)?", path):
            repo = match[1]
            if repo not in hub.repos:
                return self.answer(404, {"error": "no such repo"}, X_Error_Code="RepoNotFound")
            if "/tree/" in path:
                files = [{"type": "file", "path": n, "size": len(d), "oid": "0"} for n, d in hub.repos[repo].items()]
                return self.answer(200, files)
            siblings = [{"rfilename": name} for name in hub.repos[repo]]
            return self.answer(200, {"id": repo, "modelId": repo, "sha": hub.sha(repo), "siblings": siblings,
                                     "private": False, "tags": [], "downloads": 0, "likes": 0})  # fmt: skip
        if path == "/api/whoami-v2":
            return self.answer(200, {"name": "me", "type": "user", "orgs": []})
        return self.answer(404, {"error": path})
