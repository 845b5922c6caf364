"""Two steps of one model laid side by side, piece by piece.

What a model spends its arithmetic on (matrix products, convolutions, attention) comes in the
same order however it is executed; what stands between is fused, reordered or folded away. So
those are matched first, and what follows one of them up to the next belongs to it. A
convolution, its normalisation and its activation in one execution, and the one kernel of them in
the other, are one group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from difflib import SequenceMatcher

from workbench.core.errors import TooLargeError
from workbench.traces.kernels import KernelClass
from workbench.traces.pieces import COMPILED, Piece

_ANCHORS: frozenset[KernelClass] = frozenset({"matmul", "convolution", "attention", "collective"})
# Of scores; one that ends in a logarithm is of a loss, one of gates chooses among experts.
_SOFTMAX = re.compile(r"softmax(?!_?(gating|backward))", re.I)
_OTHER_SOFTMAX = re.compile(r"log_?softmax|gating|top_?k|nll|backward", re.I)
# Products of activations with each other, as operators and nodes are called. What is no
# operator but a kernel's bare name (in a replayed graph) may be either.
_OF_ACTIVATIONS = re.compile(r"::(matmul|bmm|baddbmm|einsum)$|^(Fused)?MatMul$")
_OPERATOR = re.compile(r"::|^[A-Z][A-Za-z]+$")
# As many matrix products may have become one, or come of one.
_MOST_MERGED = 4
# Products with weights between those of an attention: of its values, or of keys and values.
_MOST_PROJECTIONS = 2
_MOST_TO_MATCH = 4_000


@dataclass(frozen=True, kw_only=True)
class Group:
    """Pieces of A and of B that do the same; `is_aligned` is False where one side has none."""

    a: tuple[Piece, ...]
    b: tuple[Piece, ...]
    is_aligned: bool

    @property
    def a_ns(self) -> int:
        """Time in A."""
        return sum(piece.ns for piece in self.a)

    @property
    def b_ns(self) -> int:
        """Time in B."""
        return sum(piece.ns for piece in self.b)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An anchor with what follows it; the head of a step has none."""

    kind: KernelClass | None
    pieces: tuple[Piece, ...]

    @property
    def is_compiled(self) -> bool:
        return any(piece.name == COMPILED for piece in self.pieces)


def align(a: Listed[Piece], b: Listed[Piece]) -> list[Group]:
    """Groups in order; each piece of either side is in exactly one."""
    a_parts, b_parts = _parts(a), _parts(_in_order_of(a, b))
    a_attends, b_attends = _num(a_parts, "attention"), _num(b_parts, "attention")
    if a_attends < b_attends:
        a_parts = _with_attention(a_parts)
    elif b_attends < a_attends:
        b_parts = _with_attention(b_parts)
    # The heads go together, whatever is in them.
    groups = [_group(a_parts[:1], b_parts[:1])]
    a_parts, b_parts = a_parts[1:], b_parts[1:]
    for tag, a_from, a_to, b_from, b_to in _matches(a_parts, b_parts):
        if tag == "equal":
            pairs = zip(a_parts[a_from:a_to], b_parts[b_from:b_to], strict=True)
            groups += [_group([one], [other]) for one, other in pairs]
        else:
            groups.append(_unequal(a_parts[a_from:a_to], b_parts[b_from:b_to]))
    return [group for group in _merged(groups) if group.a or group.b]


def _matches(a: list[_Part], b: list[_Part]) -> list[tuple[str, int, int, int, int]]:
    """Which runs of parts are of equal kinds, as `SequenceMatcher.get_opcodes` says it.

    What is equal at both ends is set apart first: of two executions of one model that is nearly
    all, and the matcher takes the square of what is left. Raises TooLargeError where that is too
    much.
    """
    kinds_a, kinds_b = [part.kind for part in a], [part.kind for part in b]
    shorter = min(len(a), len(b))
    head = next((n for n in range(shorter) if kinds_a[n] != kinds_b[n]), shorter)
    room = shorter - head
    tail = next((n for n in range(room) if kinds_a[-1 - n] != kinds_b[-1 - n]), room)
    middle_a, middle_b = kinds_a[head : len(a) - tail], kinds_b[head : len(b) - tail]
    if max(len(middle_a), len(middle_b)) > _MOST_TO_MATCH:
        raise TooLargeError(
            f"the two steps differ too much to be laid side by side: {len(a):,} and {len(b):,} "
            "products, convolutions and attentions. Mark the steps of what is profiled with "
            "`profiler.step()`."
        )
    matcher = SequenceMatcher(None, middle_a, middle_b, autojunk=False)
    found = [("equal", 0, head, 0, head)]
    found += [
        (tag, a_from + head, a_to + head, b_from + head, b_to + head)
        for tag, a_from, a_to, b_from, b_to in matcher.get_opcodes()
    ]
    return [*found, ("equal", len(a) - tail, len(a), len(b) - tail, len(b))]


def _in_order_of(a: Listed[Piece], b: Listed[Piece]) -> Listed[Piece]:
    """B's pieces; what both sides know to be the same, in the order that A has.

    Branches of a replayed graph run in whatever order, and a compiler may schedule generated
    kernels anew: a node keeps its number, and code its hash.
    """
    for mark in (_node_of, _code_of):
        places = [place for place, piece in enumerate(b) if mark(piece) is not None]
        wanted = [mark(piece) for piece in a if mark(piece) is not None]
        if not places or Counter(wanted) != Counter(mark(b[place]) for place in places):
            continue
        # Of several with one mark, the first first.
        held = defaultdict(list)
        for place in reversed(places):
            held[mark(b[place])].append(b[place])
        made = list(b)
        for place, one in zip(places, wanted, strict=True):
            made[place] = held[one].pop()
        b = made
    return b


def _node_of(piece: Piece) -> object:
    return piece.node


def _code_of(piece: Piece) -> object:
    return piece.code


def _parts(pieces: Listed[Piece]) -> list[_Part]:
    """The head, then a part for each anchor."""
    cuts = [place for place, piece in enumerate(pieces) if piece.kind in _ANCHORS]
    bounds = [0, *cuts, len(pieces)]
    parts = [
        _Part(kind=pieces[first].kind, pieces=tuple(pieces[first:last]))
        for first, last in zip(cuts, bounds[2:], strict=True)
    ]
    return [_Part(kind=None, pieces=tuple(pieces[: bounds[1]])), *parts]


def _num(parts: list[_Part], kind: KernelClass) -> int:
    return sum(part.kind == kind for part in parts)


def _with_attention(parts: list[_Part]) -> list[_Part]:
    """Attention that is written out as one part."""
    made: list[_Part] = []
    place = 0
    while place < len(parts):
        mixing = _mixing_of(parts, place)
        if mixing is None:
            made.append(parts[place])
            place += 1
            continue
        # The values may be projected only once the scores are there.
        made += parts[place + 1 : mixing]
        pieces = (*parts[place].pieces, *parts[mixing].pieces)
        made.append(_Part(kind="attention", pieces=pieces))
        place = mixing + 1
    return made


def _mixing_of(parts: list[_Part], scores: int) -> int | None:
    """The part that mixes values by the scores of another, if those are attention's."""
    for place in range(scores + 1, min(scores + 2 + _MOST_PROJECTIONS, len(parts))):
        if _is_written_out(parts[scores], parts[place]):
            return place
        between = parts[place]
        if between.kind != "matmul" or _may_be_of_activations(between.pieces[0].name):
            return None
    return None


def _is_written_out(scores: _Part, mixing: _Part) -> bool:
    """Two products of activations with a softmax between them are attention."""
    return (
        scores.kind == mixing.kind == "matmul"
        and any(
            _SOFTMAX.search(piece.name) and not _OTHER_SOFTMAX.search(piece.name)
            for piece in scores.pieces
        )
        and all(_may_be_of_activations(part.pieces[0].name) for part in (scores, mixing))
    )


def _may_be_of_activations(name: str) -> bool:
    return bool(_OF_ACTIVATIONS.search(name)) or not _OPERATOR.search(name)


def written_out_attention(pieces: Listed[Piece]) -> list[tuple[Piece, ...]]:
    """Of each attention that is written out the pieces between its two products.

    The scores' scale and mask, and their softmax: what one kernel would not write to memory.
    """
    parts = _parts(pieces)[1:]
    found = [part for place, part in enumerate(parts) if _mixing_of(parts, place) is not None]
    if len(found) == 1 and not _OPERATOR.search(found[0].pieces[0].name):
        # One softmax between kernels of unknown operators may be anything.
        return []
    return [one.pieces[1:] for one in found]


def runs_between(pieces: Listed[Piece]) -> list[tuple[Piece, ...]]:
    """What stands between the products, convolutions and attentions, run by run."""
    head, *parts = _parts(pieces)
    return [run for run in (head.pieces, *(part.pieces[1:] for part in parts)) if run]


def _group(a: Listed[_Part], b: Listed[_Part], *, is_aligned: bool = True) -> Group:
    return Group(
        a=tuple(piece for part in a for piece in part.pieces),
        b=tuple(piece for part in b for piece in part.pieces),
        is_aligned=is_aligned,
    )


def _unequal(a: Listed[_Part], b: Listed[_Part]) -> Group:
    """Parts between two matches that have no partner one to one."""
    alike = {part.kind for part in a} == {part.kind for part in b}
    is_hidden = any(part.is_compiled for part in (*a, *b))
    return _group(a, b, is_aligned=bool(a and b) and (alike or is_hidden))


def _merged(groups: list[Group]) -> list[Group]:
    """The groups; those of one side alone go into a neighbour that holds their counterpart.

    That is one of their kind, with which some of several products that became one were matched,
    or one whose other side is compiled code, in which they may be hidden.
    """
    made: list[Group] = []
    waiting: Group | None = None
    for group in groups:
        if waiting is not None:
            if group.is_aligned and _takes(group, waiting):
                made.append(Group(a=waiting.a + group.a, b=waiting.b + group.b, is_aligned=True))
                waiting = None
                continue
            made.append(waiting)
            waiting = None
        is_lonely = not group.is_aligned and not (group.a and group.b)
        if is_lonely and made and made[-1].is_aligned and _takes(made[-1], group):
            last = made.pop()
            made.append(Group(a=last.a + group.a, b=last.b + group.b, is_aligned=True))
        elif is_lonely:
            waiting = group
        else:
            made.append(group)
    return [*made, waiting] if waiting is not None else made


def _takes(group: Group, lonely: Group) -> bool:
    others = group.b if lonely.a else group.a
    if any(piece.name == COMPILED for piece in others):
        return True
    anchors = [piece.kind for piece in lonely.a + lonely.b if piece.kind in _ANCHORS]
    kinds = {piece.kind for piece in group.a + group.b if piece.kind in _ANCHORS}
    return len(anchors) < _MOST_MERGED and set(anchors) == kinds
