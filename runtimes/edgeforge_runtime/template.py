"""Chat templates as transformers renders them, in jinja2's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import TextError


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here they are only words."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        """Raises TextError when the template does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self._specials = dict(specials)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # the compiler's own, but also what Python says of nesting and of numbers
            raise TextError(f"the chat template does not compile: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, ending where the assistant's answer begins.

        Raises:
            TextError: the template refuses the messages or fails on them.
        """
        given = {
            "messages": [{k: v for k, v in m.items() if v is not None} for m in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self._template.render(**self._specials | given)
        except Exception as error:  # the template is a program from elsewhere: it may raise anything
            raise TextError(f"the chat template failed: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja2's HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
