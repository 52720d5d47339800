"""What stands in the file, in words, without showing a secret."""

from gpudeck.config.mistakes import quote
from gpudeck.config.yaml_nodes import Mapping, Node, Scalar, Sequence


def show_found(node: Node, *, secret: bool, scalar_wanted: bool) -> str:
    """What stands there. Where settings should stand, text is not repeated: it may be `password hunter2`."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if not isinstance(node, Scalar) or node.kind == "null":
        return "nothing"
    if secret:
        return "a value that is not shown"
    return _show_scalar(node) if scalar_wanted or node.kind != "text" else "text"


def _show_scalar(node: Scalar) -> str:
    shown = quote(node.text)
    if node.kind == "text":
        return f"{shown} (text)"
    bare = shown[1:-1]
    if node.kind == "bool":
        truth = "true" if node.text.lower() in {"yes", "on", "true"} else "false"
        return bare if node.text.lower() == truth else f"{bare} (YAML reads it as {truth})"
    if node.kind == "base60":
        return f"{bare} (YAML reads it as one number)"
    if node.kind == "float" and not any(char.isdigit() for char in bare):
        return f"{bare} (no finite number)"
    return f"{bare} (a number)"
