"""A bound on the KV cache: what joins, what waits again, and that no answer changes."""

import pytest
import torch

from sampler import room
from sampler.batch import CachedBatch
from sampler.decoding import Decoder
from sampler.params import Request, SamplingParams
from sampler.room import joining, staying, token_bytes
from sampler.serve.limits import Limits
from tests.looping import complete, decoded, part_only_at_ties, requests_of
from tests.test_running_batch import tiny as tiny_model


def tiny(kind="llama", **extra):
    return tiny_model(kind, num_hidden_layers=3, max_position_embeddings=512, **extra)


@pytest.mark.parametrize(
    ("most", "rows", "slots", "waiting", "expected"),
    [
        # 3 x (100 + 128) = 684 fit into 700, 4 make 912.
        (700, 0, 0, [100, 90, 80, 70], 3),
        (683, 0, 0, [100, 90, 80, 70], 2),
        # The long one makes every row long: 3 x 428 = 1,284.
        (1283, 0, 0, [100, 90, 300], 2),
        (1284, 0, 0, [100, 90, 300], 3),
        # Beside two rows of 200 slots: 3 x 328 = 984.
        (983, 2, 200, [10, 10], 0),
        (984, 2, 200, [10, 10], 1),
        # Into an empty batch one always goes.
        (1, 0, 0, [100, 90], 1),
        (1, 1, 100, [90], 0),
        # Without a bound, all; but 16,384 slots of prompts at a time.
        (None, 7, 10_000, [400] * 16, 16),
        (None, 0, 0, [400] * 50, 40),
        (None, 0, 0, [30_000, 10], 1),
        (None, 0, 0, [10, 30_000], 1),
    ],
)
def test_how_many_join(most, rows, slots, waiting, expected):
    assert joining(most, rows, slots, waiting) == expected


def test_how_many_stay():
    slots = {1: 50, 2: 60, 3: 200}.__getitem__
    assert staying(None, 3, slots) == 3
    assert staying(603, 3, slots) == 3
    assert staying(602, 3, slots) == 2
    assert staying(122, 3, slots) == 2
    assert staying(121, 3, slots) == 1
    assert staying(50, 3, slots) == 0
    assert staying(50, 0, slots) == 0


def test_a_token_takes_keys_and_values_of_every_layer():
    # 3 layers x (keys, values) x 2 heads x 8 x 4 bytes.
    assert token_bytes(tiny()) == 3 * 2 * 2 * 8 * 4
    assert token_bytes(tiny().to(torch.bfloat16)) == 3 * 2 * 2 * 8 * 2


def test_half_of_the_free_memory_is_the_caches(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 384 * 2 * 2000)
    assert Limits().fitted(tiny()).cache_tokens == 2000
    monkeypatch.setattr(room, "free_bytes", lambda device: 384 * 2 * 1000)
    with pytest.raises(ValueError, match=r"1 MiB .* holds 1,000 tokens of 384 bytes: .* --max-ca"):
        Limits().fitted(tiny())
    assert Limits(cache_tokens=7).fitted(tiny()).cache_tokens == 7
    with pytest.raises(ValueError, match="cache_tokens must be at least 1, got 0"):
        Limits(cache_tokens=0)


@pytest.mark.parametrize(
    ("most", "used", "stat"),
    [
        ("memory.max", "memory.current", "memory.stat"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
    ],
)
def test_a_container_may_have_less_memory_than_the_machine(monkeypatch, tmp_path, most, used, stat):
    """What it has read from files counts as free."""
    monkeypatch.setattr(room, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert room.free_bytes(cpu) > 10**7
    folder = tmp_path / "memory" if most == "memory.limit_in_bytes" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / used).write_text("7000000\n")
    total = "total_" if folder != tmp_path else ""
    (folder / stat).write_text(f"anon 6000000\n{total}inactive_file 500000\nslab 1\n")
    (folder / most).write_text("max\n" if folder == tmp_path else "9223372036854771712\n")
    assert room.free_bytes(cpu) > 10**7
    (folder / most).write_text("9000000\n")
    assert room.free_bytes(cpu) == 2_500_000


@pytest.fixture
def held(monkeypatch):
    """The most slots that the rows have had, together."""
    most = [0]

    def watch(name):
        method = getattr(CachedBatch, name)

        def watched(self, *args):
            result = method(self, *args)
            keys = self._cache.layers[0].keys
            most.append(keys.shape[0] * keys.shape[2])
            return result

        monkeypatch.setattr(CachedBatch, name, watched)

    watch("add")
    watch("step")
    return most


def test_rows_wait_for_room_and_say_the_same(loaded, chats, dialogues, held, monkeypatch):
    monkeypatch.setattr(room, "HEADROOM", 4)
    requests = requests_of(chats["constrained"], dialogues[:10])
    requests += requests_of(chats["free"], dialogues[:5], seed=3)
    requests = [Request(r.prompt, r.params, r.grammar, n, r.guard) for n, r in enumerate(requests)]
    traced = complete(loaded, requests, trace=True, batch_size=8)
    bound = 3 * max(len(r.prompt) for r in requests) + 50
    assert max(held) > 2 * bound
    held.clear()
    done, decoder = decoded(loaded, requests, batch_size=8, max_cache_tokens=bound)
    assert max(held) <= bound
    assert decoder.counts.preempted > 0
    assert set(done) == set(traced)
    assert part_only_at_ties(done, traced) <= 2


@pytest.mark.parametrize("runs", [True, False])
def test_room_for_hardly_more_than_the_longest(loaded, chats, dialogues, held, runs):
    requests = requests_of(chats["constrained"], dialogues[:4])
    bound = max(len(r.prompt) for r in requests) + 200
    traced = complete(loaded, requests, trace=True)
    held.clear()
    done, _ = decoded(loaded, requests, batch_size=4, max_cache_tokens=bound, forced_runs=runs)
    assert max(held) <= bound
    assert part_only_at_ties(done, traced) <= 2


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_rows_that_cannot_join_a_running_batch_wait_too(kind, monkeypatch):
    """Of gemma2's windows rows are not taken out on the left, nor others let in."""
    monkeypatch.setattr(room, "HEADROOM", 4)
    model = tiny(kind, **({"sliding_window": 64} if kind == "gemma2" else {}))
    loaded = _Loaded(model)
    requests = [
        Request(tuple(range(5, 25 + n)), SamplingParams(seed=n, max_tokens=60), key=n)
        for n in range(6)
    ]
    traced = complete(loaded, requests, batch_size=6, trace=True)
    tight, decoder = decoded(loaded, requests, batch_size=6, max_cache_tokens=110)
    assert decoder.counts.preempted > 0
    assert part_only_at_ties(tight, traced) <= 1


def test_a_row_that_padding_keeps_long_joins_anew(monkeypatch):
    """Where slots on the left cannot be dropped, a row has those of a neighbour that has ended."""
    monkeypatch.setattr(room, "HEADROOM", 4)
    held, step = [], CachedBatch.step

    def watched(self, tokens):
        states = step(self, tokens)
        held.append(self.slots * len(self))
        return states

    monkeypatch.setattr(CachedBatch, "step", watched)
    loaded, unending = _Loaded(tiny("gemma2", sliding_window=64)), {2: -100.0}
    requests = [
        Request(tuple(range(5, 5 + n)), SamplingParams(max_tokens=most, logit_bias=unending), key=n)
        for n, most in ((20, 180), (80, 5))
    ]
    traced = complete(loaded, requests, batch_size=2, trace=True)
    assert max(held) > 210
    held.clear()
    tight, decoder = decoded(loaded, requests, batch_size=2, max_cache_tokens=210)
    assert max(held) <= 210
    assert decoder.counts.preempted > 0
    assert [len(tight[n].token_ids) for n in (20, 80)] == [180, 5]
    assert part_only_at_ties(tight, traced) <= 1


def test_beginnings_have_a_bound_too():
    """Prompts that come again share their beginnings; those that are kept have half the bound."""
    requests = [
        Request((*((7 * n + 3 * i) % 90 + 5 for i in range(100)), again), key=(n, again))
        for n in range(6)
        for again in (5, 6, 7)
    ]
    decoder = Decoder(
        _Loaded(tiny()).model,
        tokenizer=_Loaded.tokenizer,
        stop_token_ids=(2,),
        max_cache_tokens=420,
    )
    held = []
    for request in requests:
        decoder.submit(request)
        while decoder.busy:
            decoder.step()
            stored = decoder.batch._prefixes._stored
            held.append(sum(cache.get_seq_length() for _, cache in stored))
    assert 100 <= max(held) <= 210
    assert decoder.batch.shared_tokens > 0


class _Loaded:
    stop_token_ids = (2,)

    class tokenizer:
        pad_token_id = 0

        @staticmethod
        def decode(ids, **options):
            return " ".join(map(str, ids))

    def __init__(self, model):
        self.model = model


def test_what_can_never_fit_is_refused(loaded):
    def decoder(most):
        return Decoder(
            loaded.model,
            tokenizer=loaded.tokenizer,
            stop_token_ids=loaded.stop_token_ids,
            max_cache_tokens=most,
        )

    request = Request((5, 6, 7), SamplingParams(max_tokens=98))
    decoder(101).submit(request)
    with pytest.raises(ValueError, match="are 101 tokens, max_cache_tokens is 100; lower"):
        decoder(100).submit(request)
    with pytest.raises(ValueError, match="max_cache_tokens must be at least 1, got 0"):
        decoder(0)
