"""The classes of a vLLM source tree, read without importing any of it.

A vLLM that is only unpacked (another version than the installed one, no GPU, no torch) answers
here what an import of it would. Standard library only.

Hosts: engine.check_compat, tests."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITHOUT_MEMBERS = {"object", "ABC", "Protocol", "Generic"}
PROPERTIES = {"property", "cached_property"}


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a caller may pass; without the object itself."""

    positional: tuple[str, ...] = ()
    keyword_only: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    any_positional: bool = False
    any_keyword: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """An attribute, or a method with its parameters."""

    module: str
    """Where it is written: its annotation means what it means there."""
    annotation: ast.expr | None = None
    value: ast.expr | None = None
    parameters: Parameters | None = None
    is_field: bool = False
    """Annotated in the body of its class: a dataclass takes it as a parameter."""

    @property
    def says_type(self) -> bool:
        return self.annotation is not None or self.parameters is not None


@dataclass(slots=True)
class ClassSource:
    module: str
    name: str
    bases: list[ast.expr]
    members: dict[str, Member] = field(default_factory=dict)


@dataclass
class ModuleSource:
    name: str
    tree: ast.Module
    is_package: bool

    @cached_property
    def classes(self) -> dict[str, ClassSource]:
        nodes = [node for node in _statements(self.tree.body) if isinstance(node, ast.ClassDef)]
        return {node.name: class_source(self.name, node) for node in nodes}

    @cached_property
    def functions(self) -> dict[str, Member]:
        return {
            node.name: Member(self.name, node.returns, parameters=parameters_of(node.args))
            for node in _statements(self.tree.body)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name there), or (module, "") for the module itself."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                found |= {a.asname or a.name: (module, a.name) for a in node.names}
            elif isinstance(node, ast.Import):
                found |= {a.asname or a.name: (a.name, "") for a in node.names}
        return found

    @cached_property
    def members(self) -> dict[str, Member]:
        """What is assigned in the module itself."""
        return {name: _attribute(self.name, node) for name, node in _assigned(self.tree.body)}

    @property
    def names(self) -> set[str]:
        """All that `from <module> import ...` finds."""
        return {*self.members, *self.classes, *self.functions, *self.imports}

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, node.module] if node.module else parts)


class SourceTree:
    """Modules below some folders, read when they are asked for."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._modules: dict[str, ModuleSource | None] = {}

    def module(self, name: str) -> ModuleSource | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> ModuleSource | None:
        for root in self._roots:
            path = root.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    tree = ast.parse(file.read_text(encoding="utf-8"))
                    return ModuleSource(name, tree, file.name == "__init__.py")
        return None

    def find_class(self, module: str, name: str) -> ClassSource | None:
        """Where the class is written, through re-exports."""
        source = self.module(module)
        if source is None:
            return None
        if name in source.classes:
            return source.classes[name]
        if name in source.imports and source.imports[name] != (module, name):
            return self.find_class(*source.imports[name])
        alias = source.members[name].value if name in source.members else None
        return self.find_class(module, alias.id) if isinstance(alias, ast.Name) else None

    def lineage(self, found: ClassSource) -> Iterator[ClassSource]:
        """The class and its bases, as far as they are in this tree."""
        yield found
        for base in found.bases:
            parent = self.find_class(found.module, base.id) if isinstance(base, ast.Name) else None
            if parent is not None:
                yield from self.lineage(parent)

    def is_whole(self, found: ClassSource) -> bool:
        """Whether all of its bases are in this tree."""
        holders = list(self.lineage(found))
        plain = sum(getattr(b, "id", "") in WITHOUT_MEMBERS for h in holders for b in h.bases)
        return len(holders) - 1 + plain == sum(len(holder.bases) for holder in holders)

    def member(self, found: ClassSource, name: str) -> Member | None:
        """Of several in the lineage, the first that says its type."""
        items = [h.members[name] for h in self.lineage(found) if name in h.members]
        if not items:
            return self._generated_init(found) if name == "__init__" else None
        return next((item for item in items if item.says_type), items[0])

    def _generated_init(self, found: ClassSource) -> Member | None:
        """Of a dataclass or a msgspec.Struct: its fields, the bases' first."""
        fields: dict[str, Member] = {}
        for holder in reversed(list(self.lineage(found))):
            fields |= {name: item for name, item in holder.members.items() if item.is_field}
        required = frozenset(name for name, item in fields.items() if item.value is None)
        return Member(found.module, parameters=Parameters(tuple(fields), required=required))


def class_source(module: str, node: ast.ClassDef) -> ClassSource:
    found = ClassSource(module, node.name, node.bases)
    for name, statement in _assigned(node.body):
        is_field = isinstance(statement, ast.AnnAssign)
        found.members[name] = _attribute(module, statement, is_field)
    methods = [item for item in _statements(node.body) if isinstance(item, ast.FunctionDef)]
    for method in methods:
        found.members[method.name] = _method(module, method)
    for method in methods:
        given = {argument.arg: argument.annotation for argument in method.args.args}
        for name, statement in _set_on_self(method):
            if name in found.members and found.members[name].annotation is not None:
                continue
            member = _attribute(module, statement)
            if member.annotation is None and isinstance(member.value, ast.Name):
                member = replace(member, annotation=given.get(member.value.id))
            known = found.members.get(name)
            if known is None or (known.parameters is None and _is_none(known.value)):
                found.members[name] = member
    return found


def parameters_of(arguments: ast.arguments, *, bound: bool = False) -> Parameters:
    """`bound`: the first one is the object itself."""
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    keyword_only = [argument.arg for argument in arguments.kwonlyargs]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [
        name
        for name, value in zip(keyword_only, arguments.kw_defaults, strict=True)
        if value is None
    ]
    own = positional[0] if bound else ""
    return Parameters(
        positional=tuple(positional[bound:]),
        keyword_only=tuple(keyword_only),
        required=frozenset(required) - {own},
        any_positional=arguments.vararg is not None,
        any_keyword=arguments.kwarg is not None,
    )


def _method(module: str, node: ast.FunctionDef) -> Member:
    decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
    if decorators & PROPERTIES:
        return Member(module, node.returns)
    bound = "staticmethod" not in decorators
    return Member(module, node.returns, parameters=parameters_of(node.args, bound=bound))


def _attribute(module: str, node: ast.Assign | ast.AnnAssign, is_field: bool = False) -> Member:
    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
    return Member(module, annotation, node.value, is_field=is_field)


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Also those under `if` and `try`: a name may depend on the platform."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements([*statement.body, *statement.orelse])


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    for statement in _statements(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            for target in _targets(statement):
                if isinstance(target, ast.Name):
                    yield target.id, statement


def _set_on_self(method: ast.FunctionDef) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    for node in ast.walk(method):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in _targets(node):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    yield target.attr, node


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[ast.expr]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]
