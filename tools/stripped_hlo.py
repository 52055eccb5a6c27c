"""Removes from a compiled program's text (HLO) all that a rename of Python code changes.

    python tools/stripped_hlo.py FILE OUT

Two texts are equal afterwards when and only when both programs compute the same in the same order:
opcodes, shapes, layouts, operands and settings stay. Removed are metadata, the tables of source
files and lines, and the fingerprint. Names are replaced by numbers in the order in which they
appear. Triton kernels are stored as bytes that contain source lines too; they are written out as
text without them, which takes the jaxlib that wrote them.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
QUOTED = r'"(?:[^"\\]|\\.)*"'
METADATA = re.compile(rf',? ?metadata=\{{(?:[^{{}}"]|{QUOTED})*\}}')
FINGERPRINT = re.compile(r'fingerprint_before_lhs="[^"]*",?')
MODULE = re.compile(r"^HloModule [^,\s]+")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.\-]+ \(.*\) -> .* \{$")
PARAMETER = re.compile(r"(?<=[(\s/])([\w.\-]+)(?=: )")  # in the first line of a computation
NAME = re.compile(r"%[\w.\-]+")
TRITON_IR = re.compile(r'ir = "((?:[^"\\]|\\.)*)"')
TRITON_NAME = re.compile(r'name = "[^"]*"')
SYMBOL = re.compile(r"@[\w.$\-]+")


def strip_names(text: str, read_triton: Callable[[str], str] | None = None) -> str:
    """The text without names; `read_triton` turns the bytes of a Triton kernel into text."""
    read_triton = read_triton or triton_text
    numbers: dict[str, str] = {}

    def number(name: str) -> str:
        return numbers.setdefault(name.removeprefix("%"), f"%{len(numbers)}")

    lines: list[str] = []
    in_table = False
    for line in text.split("\n"):
        in_table = line in TABLES or (in_table and line != "")
        if in_table or not line.strip():
            continue
        kernel = TRITON_IR.search(line)
        if kernel:
            line = TRITON_NAME.sub("", TRITON_IR.sub("", line))
        line = FINGERPRINT.sub("", METADATA.sub("", MODULE.sub("HloModule", line)))
        line = NAME.sub(lambda found: number(found[0]), line)
        if COMPUTATION.match(line):
            line = PARAMETER.sub(lambda found: number(found[0]), line)
        lines.append(line)
        if kernel:
            lines += _number_symbols(read_triton(kernel[1])).split("\n")
    return "\n".join(lines)


def _number_symbols(text: str) -> str:
    """Functions of a kernel by number."""
    numbers: dict[str, str] = {}
    return SYMBOL.sub(lambda found: numbers.setdefault(found[0], f"@{len(numbers)}"), text)


def triton_text(escaped: str) -> str:
    """A Triton kernel, from the bytes as HLO quotes them, without source lines."""
    from jaxlib.mlir import ir
    from jaxlib.triton import dialect

    context: Any = ir.Context()
    dialect.register_dialect(context)
    context.load_all_available_dialects()
    with context:
        module: Any = ir.Module.parse(_unescaped(escaped))
        return str(module.operation.get_asm(enable_debug_info=False))


def _unescaped(text: str) -> bytes:
    """Bytes from a quoted string: two hexadecimal digits or one character after a backslash."""

    def byte(found: re.Match[bytes]) -> bytes:
        word = found[1]
        return bytes.fromhex(word.decode()) if len(word) == 2 else word

    return re.sub(rb'\\([0-9A-Fa-f]{2}|[\\"])', byte, text.encode())


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    target.write_text(strip_names(source.read_text()))


if __name__ == "__main__":
    main()
