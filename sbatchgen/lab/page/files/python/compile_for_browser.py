"""Compiles Python modules for a browser.

pack.mjs runs this file in Pyodide, the Python that loads the modules in the browser.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import types
import zipfile

LIBRARY = "/lib/python314.zip"  # Pyodide's standard library
# Parts of the standard library that no command of the page can reach.
_UNUSED_MODULES = """
_pyrepl _ssl antigravity bdb bz2 cProfile cmd colorsys configparser ctypes curses doctest ensurepip
fileinput fractions ftplib getpass http imaplib lzma mailbox modulefinder multiprocessing netrc optparse pdb
pickletools plistlib poplib profile pstats pty pyclbr pydoc rlcompleter sched shelve smtplib socketserver
sqlite3 ssl statistics stringprep symtable tabnanny this timeit trace tracemalloc tty turtle unittest wave
webbrowser wsgiref xml xmlrpc zipapp zoneinfo
"""
UNUSED_MODULES = frozenset(_UNUSED_MODULES.split())
_CODECS = "__init__ aliases ascii cp437 idna latin_1 raw_unicode_escape unicode_escape utf_8 utf_8_sig"
CODECS = frozenset(_CODECS.split())  # the only modules of `encodings` that the page needs


def compiled(text: str, path: str, keep: bool) -> bytes:  # noqa: FBT001 - JavaScript names no arguments
    """Return the compiled file of a module; without `keep`, it has neither docstrings nor line numbers."""
    code = compile(text, path, "exec", dont_inherit=True, optimize=0 if keep else 2)
    header = importlib.util.MAGIC_NUMBER + bytes(12)  # flags, time and size of the source are 0
    return header + marshal.dumps(code if keep else _without_lines(code))


def _without_lines(code: types.CodeType) -> types.CodeType:
    """Return code without its line numbers, which only a traceback shows.

    The table of lines keeps its form. In it, 0xFF stands for eight units without a line
    (InternalDocs/code_objects.md of CPython).
    """
    constants = code.co_consts
    inner = tuple(_without_lines(part) if isinstance(part, types.CodeType) else part for part in constants)
    eights, rest = divmod(len(code.co_code) // 2, 8)  # a unit of code is two bytes
    table = b"\xff" * eights + bytes([0xF8 | rest - 1] if rest else [])
    return code.replace(co_consts=inner, co_linetable=table)


def library() -> bytes:
    """Return an archive of the compiled standard library, without compression."""
    target = io.BytesIO()
    with zipfile.ZipFile(LIBRARY) as source, zipfile.ZipFile(target, "w") as archive:
        for name in sorted(source.namelist()):
            top, _, rest = name.partition("/")
            if top.removesuffix(".py") in UNUSED_MODULES or not name.endswith(".py"):
                continue
            if top == "encodings" and rest.removesuffix(".py") not in CODECS:
                continue
            info = zipfile.ZipInfo(f"{name}c", (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, compiled(source.read(name).decode(), name, keep=False))
    return target.getvalue()
