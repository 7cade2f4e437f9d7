"""Talk to the hub: what you say goes to a running server, and the answer is printed as it is written.

    python examples/chat/chat.py "What is the capital of France?"
    python examples/chat/chat.py                                     # a conversation, until an empty line

Ctrl-C ends an answer, and the server stops writing it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Dict, List, Optional, Sequence

import edgeserve
from edgeserve.errors import RequestError

Messages = List[Dict[str, str]]

KEPT = 8
"""Messages of a conversation that go along: the context is 1024 tokens."""


def say(bus: edgeserve.Client, messages: Messages, tokens: int) -> str:
    """Ask with the conversation so far, print the pieces as they come, and return the answer. Raises RequestError."""
    inputs = {"messages": json.dumps(messages[-KEPT:]), "max_tokens": tokens}
    said: List[str] = []
    with bus.stream("assistant", inputs) as stream:
        try:
            for piece in stream:
                said.append(str(piece["text"]))
                print(said[-1], end="", flush=True)
            answer = stream.answer()
        except KeyboardInterrupt:  # leaving the block cancels the request
            print(" ...")
            return "".join(said)
    print(f"\n[{int(answer['completion_tokens'])} tokens, {answer.total_ms / 1000:.1f} s]")
    return "".join(said)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """One question, or a conversation."""
    parser = argparse.ArgumentParser(description="Talk to a running hub.")
    parser.add_argument("question", nargs="*", help="asked once; without it there is a conversation")
    parser.add_argument("--endpoint", default="", help="where the server listens (default: this user's own bus)")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer, at most")
    args = parser.parse_args(argv)
    messages: Messages = []
    with edgeserve.Client(args.endpoint or None) as bus:
        while True:
            try:
                said = " ".join(args.question) if args.question else input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                return 0
            if not said:
                return 0
            messages.append({"role": "user", "content": said})
            try:
                messages.append({"role": "assistant", "content": say(bus, messages, args.tokens)})
            except RequestError as error:
                print(f"no answer: {error}", file=sys.stderr)
                return 1
            if args.question:
                return 0


if __name__ == "__main__":
    sys.exit(main())
