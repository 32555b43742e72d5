"""String jump-forward: text that the grammar forces, taken without sampling it. Off by default.

**It changes what is produced.** A forced run (``MatcherBatch.forced_run``) has exactly one legal
token at each step, so sampling would have given the same. Forced *text* may be split into tokens in
several ways, and the model, sampling under the mask, may choose any of them; jumping puts in the
tokenizer's own split, and may even replace the last token that was sampled by a longer one. The
text is the same, the tokens, and with them the distribution of what follows, need not be.

On a call of 45 tokens the masks forced 7 tokens and the text 17 at its start alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grammar.matcher import MatcherBatch


@dataclass(frozen=True)
class Jump:
    """What a jump did to a row.

    Attributes:
        removed: tokens taken back from the end of the row's ids.
        added: ids put in their place, accepted by the row.
    """

    removed: int
    added: tuple[int, ...]


_NO_JUMP = Jump(0, ())


def jump_forward(
    batch: MatcherBatch,
    row: int,
    ids: Sequence[int],
    tokenizer: Any,
    pieces: Sequence[bytes],
    *,
    keep: int = 0,
    limit: int | None = None,
) -> Jump:
    """Advance a row by its forced text, split into tokens as the tokenizer would.

    The last token sampled is split anew together with the forced text, since the tokenizer might
    merge the two. The last token of the result is left out: the text that follows might merge with
    it, and then the sampler should see the longer token. Where the grammar refuses the result (a
    control token spelled in the text, say), or the tokenizer spells another text, nothing happens.

    Args:
        ids: every token that the row has accepted, first to last.
        tokenizer: the Hugging Face tokenizer.
        pieces: bytes of each token (``grammar.tokenizer.token_bytes``).
        keep: how many of ``ids``, from the first on, must stay: what a model has read, say.
        limit: by how many tokens ``ids`` may grow; None is no limit.

    Returns:
        What to change in ``ids`` and in the model's cache: drop the last ``removed``, append
        ``added``.
    """
    forced = batch.jump_string(row)
    if not forced:
        return _NO_JUMP
    # The token that is split anew may start or end inside a character; then go back to its start.
    start = max(len(ids) - 1, keep)
    while (tail := _text(ids[start:], pieces)) is None:
        if start <= keep:
            return _NO_JUMP
        start -= 1
    old = list(ids[start:])
    new = tokenizer.encode(tail + forced, add_special_tokens=False)[:-1]
    if limit is not None:
        new = new[: len(old) + limit]
    spelled = b"".join(pieces[i] for i in new)
    # A tokenizer may write a space before what it is given, which the grammar may well allow.
    if not (tail + forced).encode().startswith(spelled) or len(spelled) <= len(tail.encode()):
        return _NO_JUMP
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    removed, added = len(old) - same, new[same:]
    batch.rollback(row, removed)
    for n, token_id in enumerate(added):
        if not batch.accept(row, token_id):
            batch.rollback(row, n)
            for back in old[same:]:
                batch.accept(row, back)
            return _NO_JUMP
    return Jump(removed, tuple(added))


def _text(ids: Sequence[int], pieces: Sequence[bytes]) -> str | None:
    try:
        return b"".join(pieces[i] for i in ids).decode()
    except UnicodeDecodeError:
        return None
