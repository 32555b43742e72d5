"""Helpers of the tests that run the decoding loop."""

from sampler.decoding import Decoder, generate
from sampler.params import Request, SamplingParams


def requests_of(chat, dialogues, **overrides):
    made = []
    for n, drawn in enumerate(dialogues):
        prompt = chat.prepare({"messages": drawn.messages, "tools": drawn.tools})
        params = SamplingParams(**{"seed": n, "max_tokens": 200, **overrides})
        made.append(Request(prompt.ids, params, prompt.grammar, n))
    return made


def complete(loaded, requests, **arguments):
    done = list(
        generate(
            loaded.model,
            requests,
            tokenizer=loaded.tokenizer,
            stop_token_ids=loaded.stop_token_ids,
            **arguments,
        )
    )
    assert len(done) == len(requests)
    return {completion.key: completion for completion in done}


def parted(one, other):
    """The first position at which two completions differ, None if they do not."""
    a, b = ((*c.token_ids, c.stop) for c in (one, other))
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def decoded(loaded, requests, **options):
    """Completions by key, and the decoder that made them."""
    decoder = Decoder(
        loaded.model,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        **options,
    )
    for request in requests:
        decoder.submit(request)
    done = {}
    while decoder.busy:
        done.update((completion.key, completion) for completion in decoder.step())
    return done, decoder


def part_only_at_ties(ours, traced):
    """How many completions part, each at a recorded near-tie; anywhere else is a fault."""
    ties = 0
    for key, completion in traced.items():
        at = parted(completion, ours[key])
        if at is not None:
            assert at in {tie.position for tie in completion.near_ties}
            ties += 1
    return ties
