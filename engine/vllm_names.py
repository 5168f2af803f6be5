"""What the plug-in uses of vLLM's inside, and whether a vLLM source tree has it.

`vllm_names.txt` is generated from our own sources (tests/engine/vllm_uses.py) and a test compares
the two, so that the list cannot rot. One line is one name; a method carries the parameters that we
rely on, those behind `*` passed by keyword. `override`: vLLM calls our method with whatever it
passes, so that a parameter more is a change, too. Standard library only.

Hosts: engine.compat (at start), engine.check_compat (any published version)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.vllm_source import Member, Parameters, SourceTree

TABLE = Path(__file__).with_name("vllm_names.txt")
OVERRIDE = "override "
MORE = "..."


class Status(StrEnum):
    PRESENT = "present"
    CHANGED = "changed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One name of vLLM's. `owner` is empty for what a module itself holds."""

    module: str
    owner: str
    name: str
    positional: tuple[str, ...] | None = None
    """None: used as an attribute, not called."""
    keywords: tuple[str, ...] = ()
    override: bool = False
    passes_on: bool = False
    """Our override hands on whatever else it is given."""

    @property
    def title(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else f"{self.module}.{self.name}"

    def line(self) -> str:
        if self.positional is None:
            return self.name
        star = ("*",) if self.keywords else ()
        more = (MORE,) if self.passes_on else ()
        text = ", ".join((*self.positional, *star, *self.keywords, *more))
        return f"{OVERRIDE if self.override else ''}{self.name}({text})"


@dataclass(frozen=True, slots=True)
class Finding:
    use: Use
    status: Status
    detail: str = ""


def read_table(text: str | None = None) -> list[Use]:
    uses: list[Use] = []
    module = owner = ""
    for line in (TABLE.read_text() if text is None else text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            module, owner = [*line.split(), ""][:2]
            continue
        uses.append(_use(module, owner, line.strip()))
    return uses


def _use(module: str, owner: str, line: str) -> Use:
    plain = line.removeprefix(OVERRIDE)
    if "(" not in plain:
        return Use(module=module, owner=owner, name=plain)
    name, rest = plain.removesuffix(")").split("(")
    passes_on = rest.endswith(MORE)
    rest = rest.removesuffix(MORE)
    positional, _, keywords = rest.partition("*")
    return Use(
        module=module,
        owner=owner,
        name=name,
        positional=_words(positional),
        keywords=_words(keywords),
        override=line.startswith(OVERRIDE),
        passes_on=passes_on,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def findings(tree: SourceTree, uses: list[Use]) -> list[Finding]:
    return [_finding(tree, use) for use in uses]


def _finding(tree: SourceTree, use: Use) -> Finding:
    source = tree.module(use.module)
    if source is None:
        return Finding(use, Status.MISSING, f"no module {use.module}")
    if not use.owner:
        member = source.functions.get(use.name)
        if member is None:
            found = use.name in source.names
            return Finding(use, Status.PRESENT if found else Status.MISSING)
        return _compared(use, member)
    owner = tree.find_class(use.module, use.owner)
    if owner is None:
        return Finding(use, Status.MISSING, f"no class {use.owner} in {use.module}")
    member = tree.member(owner, use.name)
    return Finding(use, Status.MISSING) if member is None else _compared(use, member)


def _compared(use: Use, member: Member) -> Finding:
    theirs = member.parameters
    if use.positional is None or theirs is None:
        return Finding(use, Status.PRESENT)
    detail = _lacking(use, theirs) or _unserved(use, theirs)
    return Finding(use, Status.CHANGED if detail else Status.PRESENT, detail)


def _lacking(use: Use, theirs: Parameters) -> str:
    """What we pass and they do not take."""
    given = use.positional or ()
    for index, name in enumerate(given):
        if theirs.positional[index : index + 1] != (name,) and not theirs.any_positional:
            return f"takes {_shown(theirs)}, parameter {index + 1} was {name}"
    known = {*theirs.positional[len(given) :], *theirs.keyword_only}
    unknown = [name for name in use.keywords if name not in known]
    if unknown and not theirs.any_keyword:
        return f"takes {_shown(theirs)}, without {', '.join(unknown)}"
    return ""


def _unserved(use: Use, theirs: Parameters) -> str:
    """What they pass, or want to be given, and we do not know."""
    if use.passes_on:
        return ""
    taken = (*theirs.positional, *theirs.keyword_only)
    ours = {*(use.positional or ()), *use.keywords}
    more = [name for name in taken if name not in ours]
    if use.override and more:
        return f"takes {_shown(theirs)}, which our override does not"
    if any(name in theirs.required for name in more):
        return f"takes {_shown(theirs)}, and requires more than we pass"
    return ""


def _shown(theirs: Parameters) -> str:
    star = ("*",) if theirs.keyword_only else ()
    return f"({', '.join((*theirs.positional, *star, *theirs.keyword_only))})"
