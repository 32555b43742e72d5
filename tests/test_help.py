"""Command lines: each answers ``--help`` at once, and its examples are ones it would take."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "grammar", "sampler", "eval")

# Runs command lines in one process in which heavy packages cannot be imported, and stops each of
# them as soon as its arguments are read. The parser's own --help and errors end it earlier.
PROBE = """
import argparse, contextlib, io, json, runpy, sys

HEAVY = {"torch", "triton", "transformers", "xgrammar", "numpy", "pandas", "matplotlib", "scipy"}

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise AssertionError(f"imports {name} before its arguments are read")

sys.meta_path.insert(0, Forbidden())
parse = argparse.ArgumentParser.parse_args

def only_parse(*arguments, **keywords):
    parse(*arguments, **keywords)
    raise SystemExit(0)

argparse.ArgumentParser.parse_args = only_parse
found = []
for arguments in json.loads(sys.argv.pop()):
    module, *sys.argv[1:] = arguments
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_module(module, run_name="__main__")
            status = "ran on: it does not use argparse's parse_args"
        except SystemExit as done:
            status = done.code
        except BaseException as trouble:
            status = f"{type(trouble).__name__}: {trouble}"
    found.append([status, out.getvalue(), error.getvalue()])
print(json.dumps(found))
"""


def commands() -> list[str]:
    """Every module of the packages that ``python -m`` runs."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__main__":
                found.append(".".join(parts[:-1]))
            elif re.search(r'^if __name__ == "__main__":', path.read_text("utf-8"), re.MULTILINE):
                found.append(".".join(parts))
    return found


def run(*lines: list[str]) -> list[tuple[int | str, str, str]]:
    """Exit status, stdout and stderr of command lines, ``[module, *arguments]`` each."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(lines)],
        cwd=ROOT,
        # Help is wrapped to the terminal, and coloured from Python 3.14 on.
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(result) for result in json.loads(done.stdout)]


def examples(text: str) -> list[list[str]]:
    """The command lines under ``examples:``, without environment, redirection and remarks."""
    _, _, after = text.partition("\nexamples:\n")
    lines = after.partition("\n\n")[0].splitlines()
    words = [shlex.split(re.split(r"\s{2,}|\s[<>|]\s", line.strip())[0]) for line in lines]
    return [line[line.index("-m") + 1 :] for line in words if "-m" in line]


# A command of another kind behind an option has a help of its own.
HELPS = [[name] for name in commands()] + [
    ["kernels.bench", "--op", "masked_logits"],
    ["eval.k2vv", "score"],
    ["eval.k2vv", "compare"],
]


def test_the_commands_are_found():
    known = {"kernels.audit", "kernels.bench", "grammar.schema", "eval.k2vv", "sampler.nano.train"}
    assert known <= set(commands())


@pytest.mark.parametrize("line", HELPS, ids=" ".join)
def test_help_answers_without_a_framework_and_its_examples_parse(line):
    ((status, text, error),) = run([*line, "--help"])
    assert status == 0, error
    assert text.startswith(f"usage: python -m {' '.join(line)}"), text
    given = examples(text)
    assert given, f"python -m {' '.join(line)} --help shows no examples:\n{text}"
    assert all(example[0] == line[0] for example in given)
    for example, (status, _, error) in zip(given, run(*given), strict=True):
        assert status == 0, f"{' '.join(example)}: {status}\n{error}"


def test_the_probe_sees_what_it_looks_for(tmp_path):
    """A framework, an option that is not there, and a command that reads no arguments."""
    bodies = {
        "heavy": "import torch",
        "wrong": "import argparse\nargparse.ArgumentParser(prog='x').parse_args(['--no-such'])",
        "deaf": "print('working')",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(body)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([[name] for name in bodies])],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy, wrong, deaf = (status for status, _, _ in json.loads(done.stdout))
    assert heavy == "AssertionError: imports torch before its arguments are read"
    assert wrong == 2
    assert deaf.startswith("ran on")
