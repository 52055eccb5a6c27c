"""One file with the buffer for torch loops, to be copied beside a script: `lofo vendor torch`.

It is made of the sources of this package, so it decides alike. What is left out: numba, and
`diagnose`. It needs NumPy and torch, and Python 3.8, in which some of our syntax does not exist:
`zip(strict=)`, `isinstance(x, A | B)` and aliases of types are rewritten.
"""

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import lofo_rl
from lofo_rl.types import LofoError

HOME = Path(__file__).parent
MODULES = (  # each after those that it needs when it is imported
    "types", "buffers/arrays", "buffers/memory", "buffers/rules", "buffers/cells",
    "buffers/neighbors", "buffers/ledger", "buffers/item_spec", "buffers/priorities",
    "buffers/sequences", "buffers/serialization", "buffers/replay_buffer", "buffers/calibration",
    "adapters/transitions", "adapters/torch_contrastive", "adapters/torch",
)  # fmt: skip
ABSENT = ("Self", "TypeAlias", "TYPE_CHECKING")  # of `typing`, before Python 3.11
HEAD = '''"""A replay buffer that forgets locally, for torch loops: one file of lofo-rl {version}.

Made by `lofo vendor torch`; do not edit it, make it again. It needs Python 3.8, NumPy and torch.

    from {name} import LoFoReplayBuffer as ReplayBuffer

    rb = ReplayBuffer(size, observation_space, action_space, device,
                      handle_timeout_termination=False, radius=0.1, limit=2)

MIT license:

{license}
"""

from __future__ import annotations
'''
LICENSE = """Copyright (c) 2026 The lofo developers

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions: The above copyright notice and this
permission notice shall be included in all copies or substantial portions of the Software. THE
SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.
IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


USAGE = """usage: lofo vendor torch > lofo_buffer.py

Prints the replay buffer for torch loops as one file, which needs NumPy, torch and Python 3.8."""


def print_file(words: list[str]) -> None:
    """The command `lofo vendor`."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
    elif words != ["torch"]:
        raise LofoError(f"lofo vendor takes one word, torch: got {' '.join(words)}")
    else:
        print(torch_file(), end="")


class Edit(NamedTuple):
    """Bytes of a source, and what stands there instead."""

    start: int
    end: int
    text: str


def torch_file(name: str = "lofo_buffer") -> str:
    """The text of the file."""
    sources = {module: (HOME / f"{module}.py").read_text() for module in MODULES}
    trees = {module: ast.parse(source) for module, source in sources.items()}
    owners: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for defined in _defined(tree):
            owners.setdefault(defined, []).append(module)
    new_names = {  # names that several modules define
        (module, defined): f"{defined}_OF_{_leaf(module).upper()}"
        if defined.isupper()
        else f"{defined}_of_{_leaf(module)}"
        for defined, modules in owners.items()
        if len(modules) > 1
        for module in modules
    }
    imports: Counter[str] = Counter()
    parts = []
    for module in MODULES:
        rewritten = _Rewritten(module, sources[module], trees[module], new_names)
        imports.update(rewritten.imports)
        parts.append(f"# --- {module}.py ---\n\n{rewritten.text().strip()}\n")
    head = HEAD.format(version=lofo_rl.__version__, name=name, license=LICENSE)
    text = "\n\n".join([head + "\n" + "\n".join(sorted(imports)) + "\n", *parts])
    ast.parse(text, feature_version=(3, 8))
    return text


class _Rewritten:
    """A module without its imports from this package, in the syntax of Python 3.8."""

    def __init__(
        self, module: str, source: str, tree: ast.Module, new_names: dict[tuple[str, str], str]
    ) -> None:
        self.module, self.source, self.new_names = module, source.encode(), new_names
        self.lines = [0]
        for line in source.encode().splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.imports: list[str] = []
        self.edits: list[Edit] = []
        self.names: dict[str, str] = {  # of this module, and what they are called in the file
            defined: new for (owner, defined), new in new_names.items() if owner == module
        }
        self.modules: dict[str, str] = {}  # names that stand for a module of this package
        self._visit(tree)

    def text(self) -> str:
        """The source after all edits."""
        found, place = [], 0
        for edit in sorted(self.edits):
            if edit.start < place:  # within one that was replaced
                continue
            found += [self.source[place : edit.start], edit.text.encode()]
            place = edit.end
        return b"".join([*found, self.source[place:]]).decode()

    def _visit(self, tree: ast.Module) -> None:
        for number, node in enumerate(tree.body):
            is_docstring = number == 0 and isinstance(node, ast.Expr)
            if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
                if not is_docstring:
                    self._import(node)
                self._replace(node, "")
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                self._replace(node, "\n".join(self._of(part) for part in node.orelse))
            elif isinstance(node, ast.With):  # `with needs(...)`: imports
                for part in node.body:
                    self._import(part)
                self._replace(node, "")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_alias(node):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._replace(node, f"{' = '.join(map(ast.unparse, targets))} = Any")
        for inner in ast.walk(tree):
            self._rewrite(inner)

    def _rewrite(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and node.col_offset:  # within a function
            if node.names[0].name == "compiled":
                self._replace(node, 'raise ImportError("numba is left out of this file")')
            elif (node.module or "").startswith("lofo_rl"):
                self._replace(node, "pass")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "zip" and node.keywords:
                end = self._place(node.args[-1].end_lineno, node.args[-1].end_col_offset)
                self.edits.append(Edit(end, self._end(node) - 1, ""))
            elif node.func.id == "isinstance" and isinstance(node.args[1], ast.BinOp):
                kinds = [self._of(part) for part in _alternatives(node.args[1])]
                self._replace(node.args[1], f"({', '.join(kinds)})")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (owner := self.modules.get(node.value.id)) is not None:
                self._replace(node, self.new_names.get((owner, node.attr), node.attr))
        elif isinstance(node, ast.Name) and node.id in self.names:
            self._replace(node, self.names[node.id])
        elif (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.col_offset
            and node.name in self.names
        ):
            start = self._place(node.lineno, node.col_offset)
            start = self.source.index(node.name.encode(), start)
            self.edits.append(Edit(start, start + len(node.name), self.names[node.name]))

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imports += [
                f"import {part.name}" + (f" as {part.asname}" if part.asname else "")
                for part in node.names
            ]
            return
        assert isinstance(node, ast.ImportFrom) and node.module is not None
        for part in node.names:
            if not node.module.startswith("lofo_rl"):
                if part.name not in ABSENT:
                    known_as = f" as {part.asname}" if part.asname else ""
                    source = "typing" if node.module == "collections.abc" else node.module
                    self.imports.append(f"from {source} import {part.name}{known_as}")
                continue
            inner = f"{node.module}.{part.name}".removeprefix("lofo_rl.").replace(".", "/")
            if inner in MODULES:
                self.modules[part.asname or part.name] = inner
                continue
            owner = node.module.removeprefix("lofo_rl.").replace(".", "/")
            if (owner, part.name) in self.new_names:
                self.names[part.name] = self.new_names[owner, part.name]
            if part.asname:
                raise LofoError(f"{self.module} renames {part.name}, which cannot be vendored")

    def _of(self, node: ast.AST) -> str:
        return self.source[self._start(node) : self._end(node)].decode()

    def _replace(self, node: ast.AST, text: str) -> None:
        self.edits.append(Edit(self._start(node), self._end(node), text))

    def _start(self, node: ast.AST) -> int:
        decorators = getattr(node, "decorator_list", [])
        if decorators:  # with its @
            return self._start(decorators[0]) - 1
        return self._place(node.lineno, node.col_offset)  # type: ignore[attr-defined]  # it has

    def _end(self, node: ast.AST) -> int:
        return self._place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _place(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return self.lines[line - 1] + column


def _leaf(module: str) -> str:
    return module.rpartition("/")[2]


def _defined(tree: ast.Module) -> set[str]:
    """The names that a module defines at its top level, but for aliases of types."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not _is_alias(node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return found


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether it names a type, such as `Rows = NDArray[np.int64]`."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation) == "TypeAlias"
    value = node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return isinstance(value.left, ast.Name)
    return isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """A and B of `A | B`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]
