"""Commands end in an exit code, and in one line where something went wrong."""

import pytest

from eval.command import ended


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("--limit must be at least 1, got 0"), 2, "k: error: --limit must be"),
        (FileNotFoundError(2, "No such file or directory", "a"), 2, "k: error: [Errno 2] No such"),
        (RuntimeError("the device is lost"), 2, "k: error: the device is lost"),
        (ModuleNotFoundError("No module named 'openai'"), 2, "k: error: No module named 'openai'"),
        # The message alone would be 'vocab_size', which says nothing.
        (KeyError("vocab_size"), 2, "k: error: KeyError: 'vocab_size'"),
        (KeyboardInterrupt(), 130, "k: interrupted; the rows stay"),
    ],
)
def test_what_ends_a_command_early_is_one_line_and_a_code(capsys, error, code, said):
    assert ended("k", raising(error), "the rows stay") == code
    written = capsys.readouterr().err.strip()
    assert written.startswith(said)
    assert len(written.splitlines()) == 1


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_that_ends_by_itself_says_nothing(capsys, code):
    assert ended("k", lambda: code) == code
    assert capsys.readouterr() == ("", "")


def test_who_asks_to_exit_does():
    with pytest.raises(SystemExit):
        ended("k", raising(SystemExit(3)))
