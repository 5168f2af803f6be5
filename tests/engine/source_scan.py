"""A small type inference over our sources: which expressions are vLLM's objects.

Parameters, fields and return types say it, in our sources and in vLLM's own. What it cannot tell
stands in `Uses.unknown`. Host: tests.engine.vllm_uses."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.vllm_names import Use

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.vllm_source import ClassSource, Member, ModuleSource, SourceTree

MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}
COLLECTIONS = {
    *("list", "set", "frozenset", "tuple", "deque", "type", "reversed"),
    *("Iterable", "Iterator", "Sequence", "Collection", "Generator"),
}
SAME_ELEMENTS = {"list", "set", "frozenset", "tuple", "sorted", "reversed", "deque", "iter"}
ONE_ELEMENT = {"max", "min", "next"}


@dataclass(frozen=True, slots=True)
class Type:
    """Of a value. `module` is empty for containers, `is_class` for the class itself."""

    module: str
    name: str
    arguments: tuple[Type | None, ...] = ()
    is_class: bool = False

    @property
    def element(self) -> Type | None:
        if self.module or not self.arguments:
            return None
        return self.arguments[0]

    @property
    def value(self) -> Type | None:
        return self.arguments[1] if self.name in MAPPINGS and len(self.arguments) == 2 else None


def container(name: str, *arguments: Type | None) -> Type:
    return Type("", name, arguments)


@dataclass
class Uses:
    """What a scan has found."""

    tree: SourceTree
    found: dict[tuple[str, str, str], Use] = field(default_factory=dict)
    unknown: set[tuple[str, str]] = field(default_factory=set)
    """(module of ours, attribute) on objects that are no one's."""

    def add(self, use: Use) -> None:
        key = (use.module, use.owner, use.name)
        known = self.found.get(key)
        self.found[key] = use if known is None else _merged(known, use)


def _merged(a: Use, b: Use) -> Use:
    if a.positional is None or b.positional is None:
        return b if a.positional is None else a
    if a.override or b.override:
        return a if a.override else b
    longest = max(a.positional, b.positional, key=len)
    keywords = sorted({*a.keywords, *b.keywords} - {*longest})
    more = a.passes_on or b.passes_on
    return replace(a, positional=longest, keywords=tuple(keywords), passes_on=more)


def is_theirs(module: str) -> bool:
    return module == "vllm" or module.startswith("vllm.")


class Scan:
    """One function, class or module, statement by statement."""

    def __init__(
        self,
        uses: Uses,
        module: ModuleSource,
        owner: Type | None = None,
        env: dict[str, Type | None] | None = None,
        depth: int = 0,
    ) -> None:
        self.uses = uses
        self.tree = uses.tree
        self.module = module
        self.owner = owner
        self.env = dict(env or {})
        self.depth = depth
        """Of the members that are being looked through; nothing is recorded below the first."""

    # Statements

    def statement(self, node: ast.AST) -> None:  # noqa: C901  # one flat case per kind
        match node:
            case ast.ClassDef():
                self._class(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.Assign():
                value = self.infer(node.value)
                for target in node.targets:
                    self._bind(target, value)
            case ast.AnnAssign():
                if node.value is not None:
                    self.infer(node.value)
                self._bind(node.target, self.resolve(node.annotation, self.module))
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, self._element(self.infer(node.iter)))
                self._all([*node.body, *node.orelse])
            case ast.If() | ast.While() | ast.Assert():
                self.infer(node.test)
                self._narrow(node.test)
                self._all([*getattr(node, "body", ()), *getattr(node, "orelse", ())])
            case ast.expr():
                self.infer(node)
            case _:
                self._all(ast.iter_child_nodes(node))

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.statement(node)

    def _class(self, node: ast.ClassDef) -> None:
        owner = Type(self.module.name, node.name)
        source = self.tree.find_class(self.module.name, node.name)
        assert source is not None, node.name
        base = self._their_base(source)
        for name, member in source.members.items() if base else ():
            assert base is not None
            # An interface has no way of its own to be built.
            if any(name in holder.members for holder in self.tree.lineage(base)):
                self._record(base, name, _override(member))
        self._all(node.decorator_list)
        inner = Scan(self.uses, self.module, owner, self.env)
        inner._all(node.body)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        inner = Scan(self.uses, self.module, self.owner, self.env, self.depth)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            inner.env[argument.arg] = self.resolve(argument.annotation, self.module)
        if self.owner is not None and arguments and arguments[0].arg in ("self", "cls"):
            is_class = arguments[0].arg == "cls"
            inner.env[arguments[0].arg] = replace(self.owner, is_class=is_class)
        inner._all(node.body)

    def _bind(self, target: ast.expr, value: Type | None) -> None:
        match target:
            case ast.Name():
                self.env[target.id] = value
            case ast.Tuple() | ast.List():
                for index, item in enumerate(target.elts):
                    if isinstance(item, ast.Starred):
                        self._bind(item.value, container("list", self._element(value)))
                    else:
                        self._bind(item, self._item(value, index))
            case _:
                self.infer(target)

    def _narrow(self, test: ast.expr) -> None:
        """`isinstance` holds from here on: what follows never asks less of the name."""
        for node in ast.walk(test):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "isinstance"
                and isinstance(node.args[0], ast.Name)
            ):
                self.env[node.args[0].id] = self.resolve(node.args[1], self.module)

    # Expressions

    def infer(self, node: ast.expr | None) -> Type | None:  # noqa: C901  # as above
        match node:
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                index = getattr(node.slice, "value", None)
                self.infer(node.slice)
                return self._item(self.infer(node.value), index)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return container("list", self._comprehension(node.generators, node.elt)[0])
            case ast.DictComp():
                types = self._comprehension(node.generators, node.key, node.value)
                return container("dict", *types)
            case ast.IfExp():
                self._all([node.test])
                self._narrow(node.test)
                return _known(self.infer(node.body)) or self.infer(node.orelse)
            case ast.Tuple():
                return container("tuple2", *(self.infer(item) for item in node.elts))
            case ast.BoolOp() | ast.List() | ast.Set():
                values = node.values if isinstance(node, ast.BoolOp) else node.elts
                types = [self.infer(value) for value in values]
                first = next((found for found in types if found is not None), None)
                return first if isinstance(node, ast.BoolOp) else container("list", first)
            case ast.BinOp():
                return self.infer(node.left) or self.infer(node.right)
            case ast.NamedExpr():
                self._bind(node.target, value := self.infer(node.value))
                return value
            case ast.Starred() | ast.Await():
                return self.infer(node.value)
            case ast.Lambda():
                return self._lambda(node)
            case None | ast.Constant():
                return None
        self._all(ast.iter_child_nodes(node))
        return None

    def _comprehension(
        self, generators: list[ast.comprehension], *results: ast.expr
    ) -> list[Type | None]:
        inner = Scan(self.uses, self.module, self.owner, self.env, self.depth)
        for generator in generators:
            inner._bind(generator.target, inner._element(inner.infer(generator.iter)))
            for test in generator.ifs:
                inner.infer(test)
                inner._narrow(test)
        return [inner.infer(result) for result in results]

    def _lambda(self, node: ast.Lambda, argument: Type | None = None) -> Type | None:
        inner = Scan(self.uses, self.module, self.owner, self.env, self.depth)
        inner.env |= {parameter.arg: argument for parameter in node.args.args}
        return inner.infer(node.body)

    def _name(self, name: str) -> Type | None:
        if name in self.env:
            return self.env[name]
        found = self.tree.find_class(self.module.name, name)
        if found is not None:
            return Type(found.module, found.name, is_class=True)
        module, original = self.module.imports.get(name, (self.module.name, name))
        source = self.tree.module(module)
        member = source.members.get(original) if source else None
        return None if member is None else self._type_of(member, None)

    def _attribute(self, node: ast.Attribute) -> Type | None:
        holder = self.infer(node.value)
        if isinstance(node.value, ast.Name) and self._is_module(node.value.id):
            return None
        if holder is None or not holder.module:
            if holder is None and self.depth == 0:
                self.uses.unknown.add((self.module.name, node.attr))
            return None
        return self._member_type(holder, node.attr)

    def _member_type(self, holder: Type, name: str) -> Type | None:
        """And records the use, if the member is vLLM's."""
        source = self.tree.find_class(holder.module, holder.name)
        if source is None:
            return None
        member = self.tree.member(source, name)
        base = self._their_base(source)
        if member is None and not self.tree.is_whole(source):
            return None  # of a base that is neither ours nor vLLM's
        if base is not None and (member is None or is_theirs(member.module)):
            self._record(base, name, Use(module="", owner="", name=name))
        if member is None:
            return None
        if holder.is_class and member.annotation is None and member.parameters is None:
            return replace(holder, is_class=False)  # of an enum
        return None if member.parameters is not None else self._type_of(member, holder)

    def _call(self, node: ast.Call) -> Type | None:
        arguments = [self.infer(item) for item in node.args if not isinstance(item, ast.Lambda)]
        first = arguments[0] if arguments else None
        for item in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if isinstance(item, ast.Lambda):
                self._lambda(item, self._element(first))
        for keyword in node.keywords:
            if not isinstance(keyword.value, ast.Lambda):
                self.infer(keyword.value)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func)
        if isinstance(node.func, ast.Name):
            return self._function_call(node, node.func.id, arguments)
        self.infer(node.func)
        return None

    def _method_call(self, node: ast.Call, func: ast.Attribute) -> Type | None:
        if _is_super_call(func.value):
            return self._super_call(node, func.attr)
        if isinstance(func.value, ast.Name) and self._is_module(func.value.id):
            return None
        holder = self.infer(func.value)
        if holder is not None and not holder.module:
            return self._container_method(holder, func.attr)
        if holder is None:
            self.infer(func)
            return None
        source = self.tree.find_class(holder.module, holder.name)
        member = self.tree.member(source, func.attr) if source else None
        self._member_type(holder, func.attr)
        base = self._their_base(source) if source else None
        if member is None or base is None or not is_theirs(member.module):
            return None if member is None else self._type_of(member, holder)
        self._record(base, func.attr, _call_of(node, member))
        return self._type_of(member, holder)

    def _super_call(self, node: ast.Call, name: str) -> Type | None:
        assert self.owner is not None
        source = self.tree.find_class(self.owner.module, self.owner.name)
        assert source is not None
        for holder in list(self.tree.lineage(source))[1:]:
            if name in holder.members:
                base = self._their_base(source)
                if is_theirs(holder.module) and base is not None:
                    self._record(base, name, _call_of(node, holder.members[name]))
                return self._type_of(holder.members[name], self.owner)
        return None

    def _function_call(
        self, node: ast.Call, name: str, arguments: list[Type | None]
    ) -> Type | None:
        first = arguments[0] if arguments else None
        if name in SAME_ELEMENTS and name not in self.env:
            return container("list", self._element(first))
        if name in ONE_ELEMENT:
            return self._element(first)
        if name == "enumerate":
            return container("list", container("tuple2", None, self._element(first)))
        if name == "zip":
            pair = container("tuple2", *(self._element(item) for item in arguments))
            return container("list", pair)
        if name == "replace":
            return first
        found = self._name(name)
        if found is not None and found.is_class:
            self._construct(node, found)
            return replace(found, is_class=False)
        return self._imported_call(node, name)

    def _construct(self, node: ast.Call, found: Type) -> None:
        source = self.tree.find_class(found.module, found.name)
        if source is not None and is_theirs(source.module):
            init = self.tree.member(source, "__init__")
            assert init is not None, found
            self._record(source, "__init__", _call_of(node, init))

    def _imported_call(self, node: ast.Call, name: str) -> Type | None:
        module, original = self.module.imports.get(name, (self.module.name, name))
        source = self.tree.module(module)
        member = source.functions.get(original) if source else None
        if member is None:
            return None
        if is_theirs(module) and self.depth == 0:
            self.uses.add(replace(_call_of(node, member), module=module, name=original))
        return self._type_of(member, None)

    def _container_method(self, holder: Type, name: str) -> Type | None:
        if name == "items":
            return container("list", container("tuple2", *holder.arguments))
        if name == "values":
            return container("list", holder.value)
        if name in ("get", "pop", "setdefault", "popleft") and holder.name in MAPPINGS:
            return holder.value
        if name in ("pop", "popleft"):
            return holder.element
        return holder if name in ("copy", "union", "difference") else None

    # Types

    def _type_of(self, member: Member, holder: Type | None) -> Type | None:
        module = self.tree.module(member.module)
        assert module is not None, member
        if member.annotation is not None:
            if getattr(member.annotation, "id", "") == "Self":
                return None if holder is None else replace(holder, is_class=False)
            return self.resolve(member.annotation, module)
        if member.value is None or self.depth > 3:
            return None
        inner = Scan(self.uses, module, holder, depth=self.depth + 1)
        if holder is not None:
            inner.env = {**inner.given_at_init(), "self": replace(holder, is_class=False)}
        return inner.infer(member.value)

    def given_at_init(self) -> dict[str, Type | None]:
        """The parameters of `__init__`: what an attribute is often taken from."""
        nodes = ast.walk(self.module.tree)
        return {
            argument.arg: self.resolve(argument.annotation, self.module)
            for node in nodes
            if isinstance(node, ast.FunctionDef) and node.name == "__init__"
            for argument in node.args.args
        }

    def resolve(self, node: ast.expr | None, module: ModuleSource) -> Type | None:
        match node:
            case ast.Constant(value=str() as text):
                return self.resolve(ast.parse(text, mode="eval").body, module)
            case ast.Name():
                if node.id in MAPPINGS | COLLECTIONS:
                    return container(node.id)
                found = self.tree.find_class(module.name, node.id)
                return None if found is None else Type(found.module, found.name)
            case ast.Subscript(value=ast.Name(id=name)):
                items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                types = tuple(self.resolve(item, module) for item in items)
                if name == "type":
                    return None if types[0] is None else replace(types[0], is_class=True)
                fixed = name == "tuple" and getattr(items[-1], "value", 0) is not ...
                return container("tuple2" if fixed else name, *types)
            case ast.BinOp():
                return self.resolve(node.left, module) or self.resolve(node.right, module)
        return None

    def _element(self, holder: Type | None) -> Type | None:
        if holder is None:
            return None
        if holder.module:
            source = self.tree.find_class(holder.module, holder.name)
            member = self.tree.member(source, "__iter__") if source else None
            return self._element(self._type_of(member, holder)) if member else None
        return holder.element

    def _item(self, holder: Type | None, index: object) -> Type | None:
        if holder is None or holder.module:
            return None
        if holder.name in MAPPINGS:
            return holder.value
        if holder.name != "tuple2":
            return holder.element
        known = isinstance(index, int) and index < len(holder.arguments)
        return holder.arguments[index] if known else None  # type: ignore[index]

    def _their_base(self, source: ClassSource) -> ClassSource | None:
        """The first class of vLLM's that this one is or derives from."""
        return next((c for c in self.tree.lineage(source) if is_theirs(c.module)), None)

    def _is_module(self, name: str) -> bool:
        return name not in self.env and self.module.imports.get(name, ("", "x"))[1] == ""

    def _record(self, base: ClassSource, name: str, use: Use) -> None:
        if self.depth == 0 and not (name.startswith("__") and name != "__init__"):
            self.uses.add(replace(use, module=base.module, owner=base.name, name=name))


def _known(found: Type | None) -> Type | None:
    """Not an empty list, which says nothing of its elements."""
    return found if found is not None and (found.module or any(found.arguments)) else None


def _call_of(node: ast.Call, member: Member) -> Use:
    theirs = member.parameters
    if theirs is None:
        return Use(module="", owner="", name="")
    given = [item for item in node.args if not isinstance(item, ast.Starred)]
    names = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
    return Use(
        module="",
        owner="",
        name="",
        positional=theirs.positional[: len(given)],
        keywords=tuple(sorted(names)),
        passes_on=len(given) < len(node.args) or len(names) < len(node.keywords),
    )


def _override(member: Member) -> Use:
    ours = member.parameters
    if ours is None:
        return Use(module="", owner="", name="")
    more = ours.any_positional or ours.any_keyword
    return Use(
        module="",
        owner="",
        name="",
        positional=ours.positional,
        keywords=ours.keyword_only,
        override=not more,
        passes_on=more,
    )


def _is_super_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"
