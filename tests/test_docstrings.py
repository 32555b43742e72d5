"""Every public name says what it is."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "grammar", "sampler", "eval")
MODULES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def undocumented(tree: ast.Module, bases: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring.

    A method needs none of its own where a base class says what it does, or another class of the
    same file that is used in its place; neither do setters, and what is inside a function.

    Args:
        bases: every class of the packages, by name.
    """
    if ast.get_docstring(tree) is None:
        yield "the module"
    said = {m.name for node in tree.body if isinstance(node, ast.ClassDef) for m in told(node)}
    for node in tree.body:
        if not public(node):
            continue
        if ast.get_docstring(node) is None:
            yield node.name
        if isinstance(node, ast.ClassDef):
            known = said | inherited(node, bases)
            for member in node.body:
                needs = public(member) and not setter(member) and member.name not in known
                if needs and ast.get_docstring(member) is None:
                    yield f"{node.name}.{member.name}"


def public(node: ast.AST) -> bool:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and not node.name.startswith("_")


def setter(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in decorators)


def told(node: ast.ClassDef) -> list[ast.AST]:
    """Members with a docstring."""
    return [member for member in node.body if public(member) and ast.get_docstring(member)]


def inherited(node: ast.ClassDef, bases: Mapping[str, ast.ClassDef]) -> set[str]:
    """Names that a base class documents."""
    found: set[str] = set()
    for base in node.bases:
        parent = bases.get(base.id) if isinstance(base, ast.Name) else None
        if parent is not None and parent is not node:
            found |= {member.name for member in told(parent)} | inherited(parent, bases)
    return found


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in MODULES}


@pytest.fixture(scope="module")
def classes(trees) -> dict[str, ast.ClassDef]:
    found = [node for tree in trees.values() for node in tree.body]
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_have_docstrings(path, trees, classes):
    assert list(undocumented(trees[path], classes)) == []


def test_the_check_finds_what_is_missing():
    source = '''
class Base:
    """A base."""
    def told(self):
        """Said here."""
    def untold(self): ...
class Derived(Base):
    """A derived class."""
    def told(self): ...
    def other(self): ...
    def _private(self): ...
def bare(): ...
'''
    tree = ast.parse(source)
    elsewhere = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = list(undocumented(tree, elsewhere))
    assert found == ["the module", "Base.untold", "Derived.other", "bare"]
    derived = ast.parse('"""A module."""\nclass Third(Base):\n    """A class."""\n'
                        "    def told(self): ...\n")  # fmt: skip
    assert list(undocumented(derived, elsewhere)) == []
    assert list(undocumented(derived, {})) == ["Third.told"]
