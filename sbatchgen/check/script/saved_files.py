"""Finds the files with fixed names into which a Python program saves. Each start overwrites such a file."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from sbatchgen.base.frozen import frozen

# Calls of torch, safetensors, transformers, numpy, joblib and keras that save.
_SAVING_CALLS = frozenset(
    ("save", "save_file", "save_model", "save_weights", "savez", "savez_compressed", "dump")
)
# The name of a file that holds a model, such as out/model.pt.
_MODEL_FILE = re.compile(r"[^\0{}$]*\.(?:pt|pth|ckpt|bin|tar|safetensors|npz|h5|pkl|pickle|joblib)")
_DEEPEST = 8  # expressions within expressions that are followed


@frozen()
class SavedFile:
    """A file into which a program saves."""

    name: str  # the fixed name
    option: str = ""  # the program's option that changes the name; "" without such an option


def saved_files(tree: ast.Module) -> Iterator[SavedFile]:
    """Yield the files of models into which a module saves, if the source shows their names."""
    names, options = _constants(tree), _default_files(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or called_name(node) not in _SAVING_CALLS:
            continue
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            option = options.get(value.attr) if isinstance(value, ast.Attribute) else None
            name = option.name if option else _path_text(value, names)
            if name and _MODEL_FILE.fullmatch(name):
                yield option or SavedFile(name)


def called_name(node: ast.Call) -> str:
    """Return the last name of the function that a call calls, such as save for torch.save()."""
    return str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names that the module binds only once, each with the assigned expression."""
    bound, values = Counter[str](), dict[str, ast.expr]()  # how often a name is bound, and its expression
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.Assign):
            values |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return {name: value for name, value in values.items() if bound[name] == 1}


def _default_files(tree: ast.Module) -> dict[str, SavedFile]:
    """Return the default file of each option of argparse, by the attribute of the parsed arguments."""
    defaults = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == "add_argument":
            flags = [value for arg in node.args if (value := _path_text(arg, {})).startswith("--")]
            keywords = {keyword.arg: _path_text(keyword.value, {}) for keyword in node.keywords}
            if flags and keywords.get("default"):
                attribute = keywords.get("dest") or flags[0].lstrip("-").replace("-", "_")
                defaults[attribute] = SavedFile(keywords["default"], flags[0])
    return defaults


def _path_text(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> str:
    """Return the path that an expression gives: "a", Path("a"), "a" / "b" or join("a", "b"); else "".

    `names` are constants, each with its expression. `depth` counts the expressions within expressions.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if depth > _DEEPEST:
        return ""
    if isinstance(node, ast.Name) and node.id in names:
        return _path_text(names[node.id], names, depth + 1)
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and called_name(node) in ("Path", "join", "str"):
        parts = node.args
    texts = [_path_text(part, names, depth + 1) for part in parts]
    return "/".join(texts) if all(texts) else ""
