"""Where the tests find what they share: ``scripts`` (``lib``, ``replicate``, ``draw``)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
