"""A server as vLLM is one: it answers /health once it is ready, and completes a prompt.

python serve.py PORT
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers with the path in capitals."""

    def do_GET(self) -> None:
        """Complete a prompt."""
        text = self.path.upper().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


time.sleep(1)  # as it takes time to load a model
ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
