"""Collect the texts: `python -m sample_models.language_id.data` (needs Django and Wagtail).

Reads the message catalogues that both packages ship in many languages and writes
`corpus.json.xz`, so that training and the proof that no text is in two parts need nothing else.
"""

from __future__ import annotations

import gettext
import hashlib
import importlib.util
import json
import lzma
import re
from collections import Counter, defaultdict
from pathlib import Path

FILE = Path(__file__).parent / "corpus.json.xz"
# The catalogues' folders, in the order of the network's outputs.
# fmt: off
CODES = ["ar", "ca", "cs", "de", "el", "en", "es", "fi", "fr", "hu", "it", "ja",
         "ko", "lt", "nb", "nl", "pl", "pt_BR", "ro", "ru", "sl", "sv", "tr", "uk"]
# fmt: on
MIN_BYTES, MAX_PER_LANGUAGE = 24, 1000
# In per cent of the messages; the rest trains.
EVALUATION_SHARE, CALIBRATION_SHARE = 10, 3

# Placeholders, markup and entities are the same in every language: they are no text.
_FOREIGN = re.compile(r"%\(\w+\)[a-z]|%[sd]|\{[^}]*\}|<[^>]*>|&\w+;|https?:\S+")

Parts = dict[str, dict[str, list[str]]]


def collect() -> None:
    """Write {part: {code: texts}}: whole messages, each part with messages of its own.

    A message and all its translations are in one part, so that no part holds what another
    says in a language next door. A text that two languages share is left out.
    """
    texts: dict[str, dict[str, str]] = defaultdict(dict)
    for package in ("django", "wagtail"):
        for path in sorted(_folder(package).rglob("LC_MESSAGES/*.mo")):
            code = path.parent.parent.name
            if code not in CODES:
                continue
            with path.open("rb") as stream:
                # gettext reads the format, but has no public way to list the messages.
                catalogue = gettext.GNUTranslations(stream)._catalog
            for message, text in catalogue.items():
                # Plural forms come as (message, number).
                message = message[0] if isinstance(message, tuple) else message
                message = message.split("\x04")[-1]
                if not message or not isinstance(text, str) or text == message:
                    continue
                texts[code].setdefault(_clean(text), message)
                texts["en"].setdefault(_clean(message), message)
    seen = Counter(text.casefold() for of_language in texts.values() for text in of_language)
    parts: Parts = {part: {code: [] for code in CODES} for part in ("train", *_HELD_OUT)}
    for code in CODES:
        # The order is the digest's: as good as drawn, and the same on every machine.
        for text, message in sorted(texts[code].items(), key=lambda pair: _number(pair[1])):
            if len(text.encode()) < MIN_BYTES or seen[text.casefold()] > 1:
                continue
            of_part = parts[_part(message)][code]
            if len(of_part) < MAX_PER_LANGUAGE:
                of_part.append(text)
    content = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    FILE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    for code in CODES:
        print(code, {part: len(parts[part][code]) for part in parts})


def read() -> Parts:
    """The texts as {"train" | "calibration" | "evaluation": {code: texts}}."""
    parts: Parts = json.loads(lzma.decompress(FILE.read_bytes()))
    return parts


_HELD_OUT = ("calibration", "evaluation")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install Django wagtail")
    return Path(spec.origin).parent


def _clean(text: str) -> str:
    return " ".join(_FOREIGN.sub(" ", text).split())


def _number(message: str) -> int:
    return int.from_bytes(hashlib.sha256(_clean(message).encode()).digest()[:8], "big")


def _part(message: str) -> str:
    place = _number(message) % 100
    if place < EVALUATION_SHARE:
        return "evaluation"
    return "calibration" if place < EVALUATION_SHARE + CALIBRATION_SHARE else "train"


if __name__ == "__main__":
    collect()
