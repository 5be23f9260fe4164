"""TIR expressions as statements of Triton.

An expression is computed for a whole tile at once. A `Value` is what one statement computed: its name, its element type, and
the axes of the tile along which it varies (0 rows, 1 columns). What varies along one axis only has extent 1 along the other,
what varies along none is a scalar, so that Triton broadcasts where the two meet. Equal statements are written once.

What has no form in Triton raises NotPrintable; a template is then not offered for the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pitchpipe.errors import InvalidTrace
from tuner.templates.operators import EXTREMA, FUNCTIONS, HALVES, INFIX, TYPES
from tuner.tvm_compat import ir, tirx


class NotPrintable(InvalidTrace):
    """An expression that has no form in Triton here."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """What a statement computed, or a literal."""

    text: str
    dtype: str
    """TIR's element type."""
    axes: frozenset[int] = frozenset()
    literal: bool = False
    zero_unless: frozenset[str] = frozenset()
    """Conditions, as texts, each of which must hold for it to be anything but zero."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What a tile's elements stand for."""

    shape: tuple[int, int]
    """Rows and columns."""
    variables: Mapping[Any, Value]
    """TIR variable -> its value in the tile."""
    inside: Sequence[Value]
    """Conditions under which an element of the tile is one of the tensor's: at most one for each axis, or for scalars."""
    everywhere: str = ""
    """In Gluon, which repeats no value along an axis otherwise: the name of a condition that holds for every element."""


class Maker(Protocol):
    """Computes the elements of a buffer that no kernel has written."""

    def read(self, indices: Sequence[Any], tile: Tile, given: Sequence[Value]) -> Value:
        """What the buffer would hold at these indices, of a tile, under these conditions."""

    def ahead(self, indices: Sequence[Any], tile: Tile) -> None:
        """Reads what that needs and no kernel of a run writes."""


class Printer:
    """Collects the statements of a kernel. Pointers are called p0, p1, ... by their buffers' places among the parameters."""

    def __init__(self, params: Sequence[Any], indent: int = 1) -> None:
        self._params = params
        self._indent = indent
        self._known: dict[str, str] = {}
        self._count = 0
        self.lines: list[str] = []
        self.read: set[int] = set()
        """Places of the parameters that are read."""
        self.sums: dict[Any, Value] = {}
        """Buffer -> the value that stands for each of its elements."""
        self.made: dict[Any, Maker] = {}
        """Buffer that is not read -> what computes its elements."""

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def nested(self) -> Printer:
        """A printer for the body of a loop, which may use what was computed before it."""
        made = Printer(self._params, self._indent + 1)
        made._known, made._count, made.read = dict(self._known), self._count + 1000, self.read
        return made

    def afresh(self) -> Printer:
        """A printer for other tiles, which uses nothing that was computed before."""
        made = Printer(self._params, self._indent)
        made._count, made.lines, made.read = self._count + 2000, self.lines, self.read
        return made

    def let(self, text: str) -> str:
        """The name of a variable that holds the expression of this text."""
        if text.isidentifier():
            return text
        if text not in self._known:
            self._known[text] = f"v{self._count}"
            self._count += 1
            self.line(f"{self._known[text]} = {text}")
        return self._known[text]

    def value(self, text: str, dtype: str, *of: Value) -> Value:
        """The value of a text that combines other values."""
        axes = frozenset().union(*(one.axes for one in of))
        return Value(text=self.let(text), dtype=dtype, axes=axes)

    # -- expressions

    def expression(self, node: Any, tile: Tile, given: Sequence[Value] = ()) -> Value:
        """The value of a TIR expression for the elements of a tile. given: conditions under which it is used."""
        dtype = str(node.ty.dtype)
        if dtype not in TYPES:
            raise NotPrintable(f"Triton has no numbers of type {dtype} here")
        match node:
            case tirx.IntImm():
                return Value(text=_integer(int(node.value), dtype), dtype=dtype, literal=True)
            case tirx.FloatImm():
                return Value(text=_float(float(node.value)), dtype=dtype, literal=True)
            case tirx.Var():
                return self._axis(node, tile)
            case ir.TensorLoad():
                return self.load(node, tile, given)
            case tirx.Cast():
                return self._cast(self.expression(node.value, tile, given), dtype)
            case tirx.Not():
                one = self.expression(node.a, tile, given)
                return self.value(f"({one.text}) == 0", "bool", one)
            case tirx.Select():
                return self._select((node.condition, node.true_value, node.false_value), tile, given)
            case tirx.FloorDiv() | tirx.FloorMod():
                return self._quotient(node, tile, given)
            case tirx.Max() | tirx.Min():
                left, right = (self._wide(self.typed(self.expression(one, tile, given))) for one in (node.a, node.b))
                found = self.value(f"{EXTREMA[type(node)]}({left.text}, {right.text})", left.dtype, left, right)
                return self._cast(found, dtype)
            case ir.Call():
                return self._call(node, dtype, tile, given)
            case _ if type(node) in INFIX:
                if isinstance(node, tirx.Div) and not dtype.startswith("float") and dtype != "bfloat16":
                    raise NotPrintable("a division of integers that truncates")
                return self._infix(node, dtype, tile, given)
            case _:
                raise NotPrintable(f"{type(node).__name__} has no form in Triton here")

    def _axis(self, variable: Any, tile: Tile) -> Value:
        found: Value | None = _looked_up(tile.variables, variable)
        if found is None:
            raise NotPrintable(f"{variable} is no axis of the tile")
        return found

    def _infix(self, node: Any, dtype: str, tile: Tile, given: Sequence[Value]) -> Value:
        """An operator between two values. A literal has the type of what it meets, in Triton too."""
        left, right = self.expression(node.a, tile, given), self.expression(node.b, tile, given)
        if left.literal and right.literal:
            left = self.typed(left)
        left, right = self._wide(left), self._wide(right)
        wide = "float32" if dtype == "bfloat16" else dtype
        return self._cast(self.value(f"{left.text} {INFIX[type(node)]} {right.text}", wide, left, right), dtype)

    def _wide(self, one: Value) -> Value:
        """bfloat16 as float32, in which a sum, a difference or a product is that of bfloat16 once it is rounded."""
        return self._cast(one, "float32") if one.dtype == "bfloat16" and not one.literal else one

    def typed(self, one: Value) -> Value:
        """A literal as a scalar that has its type."""
        if not one.literal:
            return one
        return self.value(f"tl.full((), {one.text}, tl.{TYPES[one.dtype]})", one.dtype)

    def literal(self, number: float, dtype: str) -> Value:
        """A number as a scalar of a type."""
        return self.typed(Value(text=_float(number), dtype=dtype, literal=True))

    def _cast(self, one: Value, dtype: str) -> Value:
        one = self.typed(one)
        if one.dtype == dtype:
            return one
        if dtype == "bool":
            return self.value(f"{one.text} != 0", "bool", one)
        return self.value(f"{one.text}.to(tl.{TYPES[dtype]})", dtype, one)

    def _quotient(self, node: Any, tile: Tile, given: Sequence[Value]) -> Value:
        """Triton's division truncates, which is the same where nothing is negative; divisors are constants here."""
        if not (isinstance(node.b, tirx.IntImm) and int(node.b) > 0):
            raise NotPrintable("a division by what is no positive constant")
        one, by = self.expression(node.a, tile, given), int(node.b)
        if _may_be_negative(node.a):
            raise NotPrintable("a division of what may be negative")
        operator = "//" if isinstance(node, tirx.FloorDiv) else "%"
        return self.value(f"{one.text} {operator} {by}", one.dtype, one)

    def _select(self, choice: Sequence[Any], tile: Tile, given: Sequence[Value]) -> Value:
        """A choice between two values by a condition. Nothing is read where it is not chosen."""
        condition, yes, no = choice
        chosen = self.expression(condition, tile, given)
        inner = [*given, chosen]
        dtype = str(yes.ty.dtype)
        if isinstance(yes, ir.TensorLoad) and _is_zero(no) and self._place(yes.source) is not None:
            return self.load(yes, tile, inner)
        refused = self.value(f"({chosen.text}) == 0", "bool", chosen)
        first = self.typed(self.expression(yes, tile, inner))
        second = self.typed(self.expression(no, tile, [*given, refused]))
        return self.value(f"tl.where({chosen.text}, {first.text}, {second.text})", dtype, chosen, first, second)

    def _call(self, node: Any, dtype: str, tile: Tile, given: Sequence[Value]) -> Value:
        name = getattr(node.op, "name", str(node.op))
        if name == "prim.if_then_else":
            return self._select(node.args, tile, given)
        if name == "prim.likely":
            return self.expression(node.args[0], tile, given)
        one = self.typed(self.expression(node.args[0], tile, given))
        if name in ("tirx.fabs", "tirx.abs"):
            return self.value(f"tl.abs({one.text})", dtype, one)
        if name == "tirx.pow" and (times := _small_power(node.args[1])):
            return self.value(" * ".join([one.text] * times), dtype, one)
        if name not in FUNCTIONS or (dtype != "float32" and dtype not in HALVES):
            raise NotPrintable(f"{name} of {dtype} has no form in Triton here")
        wide = self._cast(one, "float32")
        return self._cast(self.value(FUNCTIONS[name].format(wide.text), "float32", wide), dtype)

    # -- memory

    def load(self, node: Any, tile: Tile, given: Sequence[Value] = ()) -> Value:
        """What a tensor holds, zero where a condition does not hold."""
        summed: Value | None = _looked_up(self.sums, node.source)
        if summed is not None:
            return summed
        maker = self.maker(node)
        if maker is not None:
            return maker.read(node.indices, tile, given)
        place = self._place(node.source)
        if place is None:
            raise NotPrintable(f"{node.source.name} is computed elsewhere")
        self.read.add(place)
        dtype = str(node.source.ty.dtype)
        found = self.fetched(*self.address(node.source, f"p{place}", node.indices, tile), dtype, tile, given)
        return self.value(f"{found.text} != 0", "bool", found) if dtype == "bool" else found

    def maker(self, load: Any) -> Maker | None:
        """What computes what is loaded; None where it is in memory."""
        found: Maker | None = _looked_up(self.made, load.source)
        return found

    def place_of(self, load: Any, tile: Tile) -> tuple[str, frozenset[int]]:
        """`address` of what is loaded from a parameter."""
        place = next(at for at, param in enumerate(self._params) if load.source.same_as(param))
        self.read.add(place)
        return self.address(load.source, f"p{place}", load.indices, tile)

    def fetched(self, pointer: str, axes: frozenset[int], dtype: str, tile: Tile, given: Sequence[Value] = ()) -> Value:
        """What lies at pointers that vary along these axes, zero where a condition does not hold."""
        mask = self._mask(axes, tile, given)
        if mask is None:
            return Value(text=self.let(f"tl.load({pointer})"), dtype=dtype, axes=axes)
        needed = frozenset(one.text for one in _concerning(axes, tile, given))
        if not mask.axes <= axes:
            pointer, axes = self.spread(pointer, axes | mask.axes, tile), axes | mask.axes
        text = self.let(f"tl.load({pointer}, mask={mask.text}, other=0)")
        return Value(text=text, dtype=dtype, axes=axes, zero_unless=needed)

    def store(self, buffer: Any, pointer: str, indices: Sequence[Any], value: Value, tile: Tile) -> None:
        """Writes a value to the places of the tile that are inside."""
        target, axes = self.address(buffer, pointer, indices, tile)
        everywhere = frozenset((0, 1))
        if axes != everywhere:
            target = self.spread(target, everywhere, tile)
        mask = self._mask(everywhere, tile, ())
        dtype = str(buffer.ty.dtype)
        value = self._cast(value, dtype) if dtype != "bool" else value
        text = self.spread(self.typed(value).text, everywhere, tile) if value.axes != everywhere else value.text
        self.line(f"tl.store({target}, {text}{'' if mask is None else f', mask={mask.text}'})")

    def address(self, buffer: Any, pointer: str, indices: Sequence[Any], tile: Tile) -> tuple[str, frozenset[int]]:
        """(pointers to elements of a buffer, the axes along which they vary).

        Terms that vary along the same axes are added first, so that what is the same in each iteration of a loop can be
        computed before it.
        """
        sums: dict[frozenset[int], list[str]] = {}
        stride = 1
        for index, extent in reversed(list(zip(indices, buffer.ty.shape, strict=True))):
            for factor, term in terms(index, stride):
                if isinstance(term, tirx.IntImm):
                    if int(term) * factor:
                        sums.setdefault(frozenset(), []).append(str(int(term) * factor))
                    continue
                found = self.expression(term, tile)
                text = found.text if factor == 1 else f"{found.text} * {factor}"
                sums.setdefault(found.axes, []).append(text)
            stride *= int(extent)
        scalars = sums.pop(frozenset(), [])
        parts = [_sum(found) for _, found in sorted(sums.items(), key=lambda one: sorted(one[0]))]
        text = " + ".join([pointer, *([_sum(scalars)] if scalars else []), *([_sum(parts)] if parts else [])])
        return text, frozenset().union(*sums)

    def spread(self, text: str, axes: frozenset[int], tile: Tile) -> str:
        """A value or a pointer, repeated along more axes."""
        if tile.everywhere:
            return f"tl.where({tile.everywhere}, {text}, {text})"
        shape = tuple(extent if axis in axes else 1 for axis, extent in enumerate(tile.shape))
        return f"tl.broadcast_to({text}, {shape})"

    def _mask(self, axes: frozenset[int], tile: Tile, given: Sequence[Value]) -> Value | None:
        """Where all conditions hold that concern something that varies along these axes."""
        used = _concerning(axes, tile, given)
        if not used:
            return None
        names = list(dict.fromkeys(one.text for one in used))
        return self.value(" & ".join(names), "bool", *used) if len(names) > 1 else used[0]

    def _place(self, buffer: Any) -> int | None:
        return next((at for at, param in enumerate(self._params) if buffer.same_as(param)), None)


def _concerning(axes: frozenset[int], tile: Tile, given: Sequence[Value]) -> list[Value]:
    """The conditions given, and those of the tile that concern something that varies along these axes."""
    return [*(one for one in tile.inside if one.axes <= axes), *given]


def _sum(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({' + '.join(texts)})"


def terms(index: Any, factor: int) -> list[tuple[int, Any]]:
    """An index as a sum of terms with constant factors."""
    match index:
        case tirx.Add():
            return [*terms(index.a, factor), *terms(index.b, factor)]
        case tirx.Sub():
            return [*terms(index.a, factor), *terms(index.b, -factor)]
        case tirx.Mul() if isinstance(index.b, tirx.IntImm):
            return terms(index.a, factor * int(index.b))
        case tirx.Cast() if "int" in str(index.value.ty.dtype):
            return terms(index.value, factor)
        case _:
            return [(factor, index)]


def _looked_up(table: Mapping[Any, Any], key: Any) -> Any:
    return next((value for known, value in table.items() if key.same_as(known)), None)


def _may_be_negative(node: Any) -> bool:
    """Whether an index may be: differences are taken to be, sums and products of axes are not."""
    match node:
        case tirx.Add() | tirx.Mul():
            return _may_be_negative(node.a) or _may_be_negative(node.b)
        case tirx.FloorDiv() | tirx.FloorMod():
            return _may_be_negative(node.a)
        case tirx.Cast():
            return _may_be_negative(node.value)
        case tirx.IntImm():
            return int(node) < 0
        case _:
            return not isinstance(node, tirx.Var)


def _is_zero(node: Any) -> bool:
    return isinstance(node, (tirx.IntImm, tirx.FloatImm)) and float(node.value) == 0


def _small_power(exponent: Any) -> int:
    """The exponent where it is 2, 3 or 4, else 0."""
    value = float(exponent.value) if isinstance(exponent, tirx.FloatImm) else 0.0
    return int(value) if value in (2.0, 3.0, 4.0) else 0


def _integer(value: int, dtype: str) -> str:
    return str(bool(value)) if dtype == "bool" else str(value)


def _float(value: float) -> str:
    """Python's shortest text of the number, which Triton rounds to the type of what it meets."""
    if value != value:
        return 'float("nan")'
    return repr(value) if abs(value) != float("inf") else f'float("{value}")'
