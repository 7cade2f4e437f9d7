"""A dry run of publishing: ``twine upload`` to an index of this machine, and what ``pip`` gets from there.

The index keeps files in memory, takes each name once, as an index does, and compares the digest that comes with a file.
"""

from __future__ import annotations

import email
import email.policy
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Sequence

from dev.build_wheels import call

PROJECT = "edgeserve-runtime"


class _Handler(BaseHTTPRequestHandler):
    """Uploads as twine sends them, and pages as pip reads them (PEP 503)."""

    files: Dict[str, bytes]

    def do_POST(self) -> None:  # noqa: N802 the base class's name
        """Take a file."""
        body = self.rfile.read(int(self.headers["content-length"]))
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        form = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        fields: Dict[str, Any] = {
            part.get_param("name", header="content-disposition"): part for part in form.iter_parts()
        }
        name, content = fields["content"].get_filename(), fields["content"].get_payload(decode=True)
        digest = hashlib.sha256(content).hexdigest()
        is_good = name not in self.files and digest == fields["sha256_digest"].get_payload().strip()
        if is_good:
            self.files[name] = content
        self._answer(
            b"" if is_good else b"a file of that name is there, or its digest is another", 200 if is_good else 400
        )

    def do_GET(self) -> None:  # noqa: N802 the base class's name
        """The list of the files, or one of them."""
        name = self.path.rpartition("/")[2]
        if name in self.files:
            return self._answer(self.files[name])
        links = [
            f'<a href="/files/{each}#sha256={hashlib.sha256(content).hexdigest()}">{each}</a>'
            for each, content in self.files.items()
        ]
        self._answer("\n".join(links).encode(), 200 if PROJECT in self.path else 404)

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing is logged."""


def rehearse(uploader: str, pythons: Sequence[str], built: Sequence[str], version: str, place: str) -> List[str]:
    """Upload these files with the interpreter that has twine, and have each Python fetch that version; the file that
    each got. Raises ``RuntimeError``."""
    handler = type("Handler", (_Handler,), {"files": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{index.server_port}"
        alone = {"no_proxy": "127.0.0.1", "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": ""}
        upload = ["-m", "twine", "upload", "--non-interactive", "--username", "-", "--password", "-"]
        try:
            call([uploader, *upload, "--repository-url", f"{address}/legacy/", *built], place, alone)
            got = []
            for number, python in enumerate(pythons):
                folder = os.path.join(place, f"got{number}")
                fetch = ["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--index-url", f"{address}/simple"]
                call([python, *fetch, "--dest", folder, f"{PROJECT}=={version}"], place, alone)
                got += os.listdir(folder)
            return got
        finally:
            index.shutdown()
