"""What several test files need: the bundled model, and requests of it."""

from random import Random

import pytest

from sampler.chat import Chat
from sampler.model import load
from sampler.nano.dialogues import dialogue


@pytest.fixture(scope="session")
def loaded():
    return load("nano")


@pytest.fixture(scope="session")
def chats(loaded):
    return {
        name: Chat(loaded, constrained=name != "free", scope="always", schema_mode="strict")
        for name in ("free", "constrained")
    }


@pytest.fixture(scope="session")
def dialogues():
    rng = Random(11)
    return [dialogue(rng, change=i % 2 == 1, held_out=True) for i in range(24)]
