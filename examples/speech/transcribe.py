"""Sends a recording to the running server, and prints what was said as it comes."""

from __future__ import annotations

import argparse
import sys
import wave
from typing import Optional, Sequence

import numpy as np

import edgeserve
from edgeserve.config.files import resolve_path

SPEECH = "cache:pyannote.audio-3.3.2/speech.wav"
RATE = 16000


def sound(path: str) -> np.ndarray:
    """A recording of 16 bits, one channel and 16 kHz, as float32 from -1 to 1."""
    with wave.open(resolve_path(path, ".")) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path}: expected one channel of 16 bits at 16 kHz")
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Transcribe one file."""
    parser = argparse.ArgumentParser(description="Have a running server write down what is said in a WAV file.")
    parser.add_argument("file", nargs="?", default=SPEECH, help="16 kHz, one channel, 16 bits (default: the example's)")
    parser.add_argument("--endpoint", default="", help="where the server listens (default: this user's own bus)")
    args = parser.parse_args(argv)
    with edgeserve.Client(args.endpoint or None) as client:
        with client.stream("transcribe", {"audio": sound(args.file)}) as pieces:
            for piece in pieces:
                print(piece["text"], end="", flush=True)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
