"""What the log of a QNN child says went wrong: the lines and the nodes that it names."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\S+ \S+ \[(?P<level>[VIWEF]):onnxruntime:[^\]]*\]\s*")
_CULPRIT = re.compile(
    r"Unsupported nodes in QNN EP|backendValidateOpConfig\(\) failed|fallback to CPU EP has been"
    r"|Failed to|QNN SetupBackend failed|err(or)? \d{4}|Error:",
    re.IGNORECASE,
)
# The libraries' greetings, and faulthandler's stack: that is for the reader of the log.
_NOISE = re.compile(
    r'LIBNATIVE|^File ".*", line \d+ in|^(Current thread|Thread) 0x[0-9a-f]+ |^<no Python frame>|^\.\.\.$'
    r"|^Extension modules:|^Fatal Python error|^\[INFO\]"
    r"|^Removing initializer|^File mapped weights feature|^EPContext encryption config|^Unable to get producer node"
)
_NODE = re.compile(r"\{\s*name:\s*(.*?),\s*type:\s*(.*?)\s*\}")
_REFUSED = re.compile(r"backendValidateOpConfig\(\) failed for node [`'\"]?(\S+?)[`'\"]? of type")
_SHELL = ("DequantizeLinear", "QuantizeLinear")
_MAX_LINES, _MAX_NODES = 6, 12


def readable(log: str) -> list[str]:
    """A log's lines without colours, times, stacks and greetings."""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).strip() for line in log.splitlines()]
    return [line for line in lines if line and not _NOISE.search(line)]


def culprits(log: str) -> tuple[str, ...]:
    """The lines of a child's log that name what failed, each once.

    Falls back to the log's last lines when no known pattern is in it.
    """
    lines = readable(log)
    picked = (
        list(dict.fromkeys(_shorten(line) for line in lines if _CULPRIT.search(line))) or lines[-_MAX_LINES:]
    )
    # The cause comes first (an unsupported node), its consequences (a session that cannot start) last.
    return tuple(picked[:_MAX_LINES])


def refused_nodes(log: str) -> frozenset[str]:
    """Names of the ONNX nodes that the compiler would not take, without their Quantize/Dequantize shell."""
    found = [(name, kind) for line in readable(log) for name, kind in _NODE.findall(line)]
    inner = {name for name, kind in found if kind not in _SHELL} or {name for name, _ in found}
    return frozenset(inner | {name for line in readable(log) for name in _REFUSED.findall(line)})


def _shorten(line: str) -> str:
    nodes = [f"{name} ({kind})" for name, kind in _NODE.findall(line)]
    if not nodes:
        return line[:400]
    # A unit is named with its DequantizeLinear/QuantizeLinear shell: the operator inside is the news.
    inner = [n for n in nodes if not n.endswith(tuple(f"({kind})" for kind in _SHELL))] or nodes
    rest = f" and {len(inner) - _MAX_NODES} more" if len(inner) > _MAX_NODES else ""
    return f"{line.split('{')[0].strip()} {', '.join(inner[:_MAX_NODES])}{rest}"
