"""The prompts that are measured: no two of a run are alike, and every server gets the same ones.

A server may keep what it has computed for a prompt and use it for the next one that begins alike.
Each prompt here differs from its first words on, so that no server gains by that.
"""

from __future__ import annotations

import hashlib
import random

LENGTHS = {"short": 24, "long": 800}
"""Words of each kind of prompt; a token is a little less than a word."""

TASK = "Write a very long story that uses all of these words. Go on and on, without an end."
WORDS = (
    "apple arrow autumn basket bell bird boat bread bridge brother candle castle cat cloud coat "
    "corn daughter desert door dream dust evening farm feather field fire fish flower forest "
    "friend garden gate glass gold grass hammer harbour hill honey horse house island journey "
    "kitchen ladder lake lamp letter light market meadow milk mirror moon morning mountain music "
    "night ocean orange paper path pepper piano pocket rain river road rope salt school shadow "
    "ship silver snow song spring star stone storm street summer table thunder tower train tree "
    "valley village wagon wall water wheat wheel wind window winter wolf wood"
)


def messages(kind: str, key: str) -> list[dict[str, str]]:
    """Return a conversation whose prompt is of that length; another `key` makes another one.

    There is a system message because a template may add one of its own where there is none, and
    servers that have templates of their own then send prompts of different lengths.
    """
    mark = hashlib.sha256(key.encode()).hexdigest()[:8]
    words = random.Random(key).choices(WORDS.split(), k=LENGTHS[kind])
    return [
        {"role": "system", "content": f"{mark}: you tell long stories."},
        {"role": "user", "content": f"{' '.join(words)}.\n\n{TASK}"},
    ]
