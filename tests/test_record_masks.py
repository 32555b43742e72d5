"""Masks along a tool call, on a vocabulary of the 256 bytes: what JSON and the schema allow."""

import base64
import string

import numpy as np
import pytest
import torch

from grammar import record_masks
from kernels import bitmask as masks

SPACE = set(b" \t\r\n")
OPEN, CLOSE, THINK, END_THINK, END = range(256, 261)
VOCAB_SIZE = 300


@pytest.fixture(scope="module")
def allowed():
    recorded = record_masks.record([bytes([byte]) for byte in range(256)], VOCAB_SIZE)
    return {
        place: set(masks.allowed_ids(torch.from_numpy(mask), VOCAB_SIZE).tolist())
        for place, mask in recorded
    }


def test_masks_are_what_json_and_the_schema_allow(allowed):
    assert allowed["name"] == set(b"bg")
    assert allowed["key"] == SPACE | set(b'"')
    assert allowed["enum"] == set(b"epbf")
    assert allowed["integer"] == SPACE | set(b"123456789")
    # After "3" of a number at the end of the arguments.
    assert allowed["number"] == SPACE | set(string.digits.encode()) | set(b".eE}")


def test_strings_and_free_text_are_nearly_free(allowed):
    # No control characters, no second bytes of UTF-8 first, no bytes that UTF-8 never has.
    first = set(range(0x20, 0x80)) | set(range(0xC2, 0xF5))
    assert allowed["string"] - {THINK, END_THINK} == first
    assert allowed["between"] == set(range(256)) | {OPEN, END}


def test_ranks_are_read_in_their_order(tmp_path):
    path = tmp_path / "three.tiktoken"
    lines = (f"{base64.b64encode(piece).decode()} {rank}" for piece, rank in
             ((b" b", 1), (b"a", 0), (b"\xff", 2)))  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    assert record_masks.read_tiktoken(path) == [b"a", b" b", b"\xff"]


def test_the_file_holds_every_size_and_spare_bits_are_clear(tmp_path, monkeypatch):
    monkeypatch.setattr(record_masks, "VOCAB_SIZES", (270, 300))
    path = tmp_path / "bytes.tiktoken"
    path.write_bytes(b"\n".join(b"%s %d" % (base64.b64encode(bytes([i])), i) for i in range(256)))
    output = tmp_path / "masks.npz"
    assert record_masks.main([str(path), "--output", str(output)]) == 0
    with np.load(output) as file:
        assert {name.split("/")[0] for name in file} == {"270", "300"}
        for name, mask in file.items():
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            assert bits.any()
            assert not bits[int(name.split("/")[0]) :].any()
