"""Compiles Python modules for the page, so that the browser loads smaller files and compiles nothing.

pack.mjs runs this file in Pyodide, which is also the Python of the browser. It calls `compiled` and
`library`.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import types
import zipfile

LIBRARY = "/lib/python314.zip"  # Pyodide's standard library
# Parts of the standard library that no command of the page can reach.
_UNUSED_MODULES_TEXT = """
_pyrepl _ssl antigravity bdb bz2 cProfile cmd colorsys configparser ctypes curses doctest ensurepip
fileinput fractions ftplib getpass http imaplib lzma mailbox modulefinder multiprocessing netrc optparse pdb
pickletools plistlib poplib profile pstats pty pyclbr pydoc rlcompleter sched shelve smtplib socketserver
sqlite3 ssl statistics stringprep symtable tabnanny this timeit trace tracemalloc tty turtle unittest wave
webbrowser wsgiref xml xmlrpc zipapp zoneinfo
"""
UNUSED_MODULES = frozenset(_UNUSED_MODULES_TEXT.split())
_CODECS_TEXT = "__init__ aliases ascii cp437 idna latin_1 raw_unicode_escape unicode_escape utf_8 utf_8_sig"
CODECS = frozenset(_CODECS_TEXT.split())  # the only modules of `encodings` that the page needs


def compiled(text: str, path: str, keeps_docstrings: bool) -> bytes:  # noqa: FBT001 - called by position
    """Return a module as the bytes of a .pyc file.

    The file has docstrings and line numbers only with `keeps_docstrings`.
    """
    optimize = 0 if keeps_docstrings else 2  # 2 removes docstrings and assertions
    code = compile(text, path, "exec", dont_inherit=True, optimize=optimize)
    header = importlib.util.MAGIC_NUMBER + bytes(12)  # flags, time and size of the source are 0
    return header + marshal.dumps(code if keeps_docstrings else _without_lines(code))


def _without_lines(code: types.CodeType) -> types.CodeType:
    """Return code without its line numbers, which only a traceback shows.

    The new table of lines says that no unit of the code has a line. The byte 0xFF stands for eight units, and
    0xF8 to 0xFE for one to seven units (InternalDocs/code_objects.md of CPython).
    """
    constants = code.co_consts
    inner = tuple(_without_lines(part) if isinstance(part, types.CodeType) else part for part in constants)
    eights, rest = divmod(len(code.co_code) // 2, 8)  # a unit of code is two bytes
    table = b"\xff" * eights + bytes([0xF8 | rest - 1] if rest else [])
    return code.replace(co_consts=inner, co_linetable=table)


def library() -> bytes:
    """Return a zip archive of the compiled standard library, without the modules that the page does not need.

    The archive is not compressed, because pack.mjs compresses all files of the page.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(LIBRARY) as source, zipfile.ZipFile(target, "w") as archive:
        for name in sorted(source.namelist()):
            top, _, rest = name.partition("/")
            if top.removesuffix(".py") in UNUSED_MODULES or not name.endswith(".py"):
                continue
            if top == "encodings" and rest.removesuffix(".py") not in CODECS:
                continue
            # The same time in each archive, so that the same modules give the same bytes.
            info = zipfile.ZipInfo(f"{name}c", (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, compiled(source.read(name).decode(), name, keeps_docstrings=False))
    return target.getvalue()
