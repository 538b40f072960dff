"""Records: the layout of one kind of layer in one framework, as data.

A record states the position of each number, in the notation, and separately the function that the numbers
parametrise. Names of arrays are templates: {L} is the layer, {D} the direction, spelled as in `directions`,
and {C} the index of both, layer * directions + direction. If there are several layers or directions, a name
without these gets them as a prefix: `0/forward/kernel`. A ? at the end marks an optional array.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from string import digits
from typing import Any

from stepnet.compiler.values.arguments import instance, mapping
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.notation import (
    OF_ALL_GATES,
    PARAMETERS,
    Concatenation,
    Flat,
    Loop,
    Pattern,
    Term,
    parse,
    terms,
)
from stepnet.layout.semantics import GATES, Semantics, Setting, check_semantics
from stepnet.layout.sizes import Shape, Sizes, shape_of

KINDS = {"W": "W", "R": "R", "b": "bias", "d": "bias", "p": "peepholes", "P": "projection", "q": "its bias"}


@dataclass(frozen=True)
class Evidence:
    """The evidence for a record (the layout of one kind of layer in one framework).

    source: where the layout was read.
    run: how it was verified by running the framework; empty if it was not run.
    versions: the versions of the framework that it is valid for.
    """

    source: str
    run: str = ""
    versions: str = ""

    def __str__(self) -> str:
        """The evidence as one line of text: the source, the versions, and how the layout was verified."""
        validity = f", holds for {self.versions}" if self.versions else ""
        return (
            f"{self.source}{validity}; {f'verified: {self.run}' if self.run else 'not verified by running'}"
        )


@dataclass(frozen=True)
class Entry:
    """An array of a record (the layout of one kind of layer) at certain sizes.

    name, template: the array's name, and the template in the record from which it is built.
    pattern: the parsed notation of the array.
    layer, direction: None if the array has the numbers of all layers or directions.
    optional: whether a file may lack the array.
    """

    name: str
    template: str
    pattern: Pattern
    layer: int | None
    direction: int | None
    optional: bool

    @property
    def kinds(self) -> set[str]:
        """Kinds of parameters in this array, as "bias"; a layer has all optional arrays of a kind or none."""
        return {KINDS[term.parameter] for term in terms(self.pattern)}


@dataclass(frozen=True)
class Record:
    """The layout of one kind of layer in one framework: the positions of its numbers, and their meaning.

    Attributes:
        name: `framework.cell`.
        cell: "rnn", "gru", "lstm" or "mgu".
        arrays: The notation of each array, by a template of its name: {L} is the layer, {D} the direction,
            and a ? at the end says that the array may be missing.
        semantics: For each field of `Semantics` that is not usual: the value, or the `Setting` of the
            framework that decides it.
        evidence: Where the layout was read, and how it was verified.
        directions: The spelling of {D} for the two directions.
        lone_bias: The parameter, "b" or "d", that a single bias is, in a layout that has both.
        lone_direction: The spelling of {D} if there is one direction; None for that of the first of two.
        ways: The number of directions of its layers, if that is fixed.
        mark: A pattern that the layer's name must match, if other layers have arrays of the same names.
        notes: Remarks for the reports of conversions.

    >>> gru = Record("mine.gru", "gru", {"w": "W[(g:rzn h) x]", "u": "R[(g:rzn h) k]", "b?": "b[(g:rzn h)]"})
    >>> gru.names(), gru.gates
    (['w', 'u', 'b?'], 'rzn')
    """

    name: str
    cell: str
    arrays: Mapping[str, str]
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evidence: Evidence = Evidence("")
    directions: tuple[str, str] = ("forward/", "backward/")
    lone_bias: str = "b"
    lone_direction: str | None = None
    ways: int | None = None
    mark: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Validates a new record (a layout of weights): raises `InputError` for fields of other types, and
        `LayoutError` if a gate's parameter has two positions, or that of W or R (input and recurrent weights)
        none.
        """
        instance(self.name, str, "a record is called framework.cell")
        for name, text in mapping(self.arrays, f"{self.name}: arrays are texts by name").items():
            instance(text, str, f"{self.name}: {name} is a text in the notation")
        mapping(self.semantics, f"{self.name}: semantics are values by field")
        check_semantics(self.name, self.cell, self.semantics)
        blocks = [(term.parameter, gate) for term in self.terms() for gate in self.gates_of(term)]
        for parameter, gate in blocks:
            if blocks.count((parameter, gate)) > 1:
                raise LayoutError(f"{self.name}: {parameter} of gate {gate} is in two places")
        for parameter in "WR":
            missing = [gate for gate in self.gates if (parameter, gate) not in blocks]
            if missing:
                raise LayoutError(f"{self.name}: {parameter} of gate {missing[0]} is nowhere")

    def __hash__(self) -> int:
        """Returns the hash of the record's name, because the mappings of a record are not hashable."""
        return hash(self.name)

    def gates_of(self, term: Term) -> str | tuple[str]:
        """Returns the gates of a term (a parameter with its axes); ("",) if it has none. Raises `LayoutError`
        if the axes or gates of the term do not suit its parameter and the cell of this layout (arrangement of
        weights).
        """
        names = [atom.name for axis in term.axes for atom in axis if atom.name != "1"]
        if sorted(set(names) - set("gLD")) != sorted(PARAMETERS[term.parameter]):
            expected = " ".join(PARAMETERS[term.parameter])
            raise LayoutError(f"{self.name}: {term} has not the axes {expected} of {term.parameter}")
        if len(set(names)) != len(names):
            raise LayoutError(f"{self.name}: {term} has an axis twice")
        if term.raw and term.raw != PARAMETERS[term.parameter]:
            raise LayoutError(f"{self.name}: {term}: a raw buffer is of {PARAMETERS[term.parameter]}")
        if term.parameter in OF_ALL_GATES:
            if term.gates:
                raise LayoutError(f"{self.name}: {term}: {term.parameter} has no gates")
            return ("",)
        unknown = [gate for gate in term.gates if gate not in GATES[self.cell]]
        if unknown:
            raise LayoutError(f"{self.name}: {term}: the cell {self.cell} has no gate {unknown[0]}")
        return term.gates

    @property
    def gates(self) -> str:
        """The letters of the gates that this layout stores: without i if the cell computes i as 1 - f."""
        return (
            GATES[self.cell].replace("i", "") if self.semantics.get("coupled") is True else GATES[self.cell]
        )

    @property
    def projection(self) -> bool:
        """True if layers of this layout have an array for the projection of their output."""
        return any(term.parameter == "P" for term in self.terms())

    @property
    def has_biases(self) -> bool:
        """True if layers of this layout have an array for the biases of gates."""
        return any(term.parameter in "bd" for term in self.terms())

    def misfit(self, sizes: Sizes) -> str | None:
        """Returns the reason, for errors, why this layout (a framework's arrangement of weights) cannot store
        layers of `sizes`; None if it can. A reason is another number of directions than the layout's, or an
        array of all layers, with one axis x for their inputs, where layers have different numbers of inputs.
        """
        if self.ways not in (None, sizes.directions):
            counts = {1: "one direction", 2: "both directions"}
            return f"{self.name} is of {counts[self.ways]}, and here {counts[sizes.directions]} would be"
        together = any("L" in letters_in(term) and "x" in letters_in(term) for term in self.terms())
        if together and sizes.layers > 1 and sizes.inputs != sizes.inputs_of(1):
            return (
                f"all layers of {self.name} have the same number of inputs, and here the first has "
                f"{sizes.inputs} "
                f"and the others {sizes.inputs_of(1)}: there the first layer is separate"
            )
        return None

    def terms(self) -> list[Term]:
        """Returns all terms (parameters with their axes) in the notation of the layout's arrays."""
        return [term for pattern in self.patterns.values() for term in terms(pattern)]

    @property
    def layered(self) -> bool:
        """True if names, axes or buffers of the layout tell layers (L) apart, so that it can hold a stack."""
        return any("L" in letters_of(self.patterns[name]) | placeholders_in(name) for name in self.patterns)

    @property
    def names_layers(self) -> bool:
        """True if all array names of this layout contain the number of the layer, to tell layers apart."""
        return all("L" in placeholders_in(self.full[name]) for name in self.patterns)

    def layer_of(self, name: str) -> int:
        """Returns the number of the layer of an array, read off its name; 0 if the name contains none."""
        return self.known_name(name)[1] or 0

    def in_layer(self, name: str, layer: int, sizes: Sizes) -> str:
        """Returns the name that the array `name` of one layer has in layer number `layer` of a stack in this
        layout (arrangement of weights), to address the arrays of the stack. sizes: of the whole stack, on
        which prefixes of names depend.

        >>> gru = Record("mine.gru", "gru", {"w_l{L}{D}": "W[(g:rzn h) x]", "u": "R[(g:rzn h) k]"})
        >>> [gru.in_layer(name, 1, Sizes(2, 3, layers=2)) for name in ("w_l0backward/", "u")]
        ['w_l1backward/', '1/u']
        """
        template, _, direction = self.known_name(name)
        return self.array_name(self.full[template], layer, direction or 0, sizes)

    @computed_once
    def patterns(self) -> dict[str, Pattern]:
        """Parsed notation (parameters and axes) of each array of the layout, by the template of its name."""
        return {name: parse(text) for name, text in self.arrays.items()}

    def parameters(self, template: str) -> set[str]:
        """Returns the letters of the parameters, as "W" or "b", in the array whose name has this template."""
        return {term.parameter for term in terms(self.patterns[template])}

    # ---- names ---------------------------------------------------------------------------------------------

    @computed_once
    def full(self) -> dict[str, str]:
        """Full templates of array names, by template: with a prefix {L/} (layer) or {D/} (direction) where
        neither the template nor the array's notation contains that letter, and without a ? at the end.
        """
        return {template: with_index(template, pattern) for template, pattern in self.patterns.items()}

    def entries(self, sizes: Sizes) -> Iterator[Entry]:
        """Yields the description of each array of this layout (a framework's arrangement of weights), for
        layers of these sizes, by layer, direction and template of the name. An array that holds all layers or
        directions comes once.
        """
        for layer in range(sizes.layers):
            for direction in range(sizes.directions):
                for template, pattern in self.patterns.items():
                    full = self.full[template]
                    by_layer, by_direction = "L" in placeholders_in(full), "D" in placeholders_in(full)
                    if (layer and not by_layer) or (direction and not by_direction):
                        continue
                    yield Entry(
                        self.array_name(full, layer, direction, sizes),
                        template,
                        pattern,
                        layer if by_layer else None,
                        direction if by_direction else None,
                        template.endswith("?"),
                    )

    def shapes(self, sizes: Sizes) -> dict[str, Shape]:
        """Returns the shapes of the arrays of this layout (a framework's arrangement of weights) by name, for
        layers of these sizes.

        >>> from stepnet.layout import record
        >>> record("keras.lstm").shapes(Sizes(inputs=2, hidden=3))
        {'kernel': (2, 12), 'recurrent_kernel': (3, 12), 'bias': (12,)}
        """
        return {entry.name: shape_of(entry.pattern, sizes, entry.layer or 0) for entry in self.entries(sizes)}

    def array_name(self, template: str, layer: int, direction: int, sizes: Sizes) -> str:
        """Returns the name of the array with a template in one layer and direction: the template with both
        filled in.

        template: a full one, as the values of `full`, whose prefixes {L/} and {D/} are written only if
        `sizes` has several layers or directions.
        """
        direction_text = self.directions[direction]
        if sizes.directions == 1 and self.lone_direction is not None:
            direction_text = self.lone_direction
        name = template.replace("{L/}", f"{layer}/" if sizes.layers > 1 else "")
        name = name.replace("{D/}", direction_text if sizes.directions > 1 else "")
        name = name.replace("{C}", str(len(self.directions) * layer + direction))
        return name.replace("{L}", str(layer)).replace("{D}", direction_text)

    def parsed_name(self, name: str) -> tuple[str, int | None, int | None] | None:
        """Parses the name of an array into (template, layer, direction); returns None for an unknown name. A
        layer or direction that the name does not contain is None.
        """
        for template, pattern in self.spellings.items():
            match = pattern.fullmatch(name)
            if match:
                groups = match.groupdict()
                if "C" in groups:
                    return template, *divmod(int(groups["C"]), len(self.directions))
                layer = int(groups["L"] or 0) if "L" in groups else None
                direction = int(groups["D"] == self.directions[1]) if "D" in groups else None
                return template, layer, direction
        return None

    def known_name(self, name: str) -> tuple[str, int | None, int | None]:
        """Parses an array's name into (template, layer, direction), None for a layer or direction that the
        name does not contain; raises `LayoutError` if the name is unknown.
        """
        parsed = self.parsed_name(name)
        if parsed is None:
            raise LayoutError(f"{self.name} has no array {name!r}")
        return parsed

    @property
    def direction_spellings(self) -> tuple[str, ...]:
        """All spellings of a direction in array names, also of a layer's only direction, to match names."""
        return (*self.directions, *([] if self.lone_direction is None else [self.lone_direction]))

    @computed_once
    def spellings(self) -> dict[str, re.Pattern[str]]:
        """Regular expressions for the names of each array, by the template of the name. Their groups are L
        for the layer, D for the direction and C for the index of both (layer * directions + direction), as
        far as the template has them.
        """
        both = "|".join(map(re.escape, self.directions))
        any_direction = "|".join(map(re.escape, self.direction_spellings))
        fields = {
            "{L}": r"(?P<L>\d{1,4})",
            "{C}": r"(?P<C>\d{1,4})",
            # The numbers in Flax's GRUCell_1/ and TensorFlow's layer_with_weights-1/ are parts of names.
            "{L/}": r"(?:(?<![_:-])(?P<L>\d{1,4})/)?",
            "{D}": f"(?P<D>{any_direction})",
            "{D/}": f"(?P<D>{both}|)",
        }
        spellings: dict[str, re.Pattern[str]] = {}
        for template in self.patterns:
            text = re.escape(self.full[template])
            for braces, pattern in fields.items():
                text = text.replace(re.escape(braces), pattern)
            spellings[template] = re.compile(text)
        return spellings

    def names(self) -> list[str]:
        """Returns the array names of this layout (a framework's arrangement of weights) for one layer and
        direction, for messages; optional ones end in ?.
        """
        return [f"{entry.name}{'?' if entry.optional else ''}" for entry in self.entries(Sizes(1, 1))]

    @computed_once
    def prefixed_patterns(self) -> dict[str, str]:
        """Regular expressions for array names after any prefix, by the template of the name, to find layers
        in model files. Group 1 is the prefix, which does not end in a letter or digit.
        """
        texts = {
            name: re.sub(r"\?P<[LDC]>", "?:", spelling.pattern) for name, spelling in self.spellings.items()
        }
        return {name: f"((?:.*?[^A-Za-z0-9])??)(?:{text})" for name, text in texts.items()}

    def reads_as_index(self, front: str) -> bool:
        """Tells if the end of `front`, a prefix before arrays' names such as "rnns.0/", would be read as the
        layer or direction in the array names of this layout (arrangement of weights). A writer then has to
        choose another prefix.

        >>> gru = Record("mine.gru", "gru", {"w": "W[(g:rzn h) x]", "r_w": "R[(g:rzn h) k]"})
        >>> [gru.reads_as_index(front) for front in ("rnns.0/", "rnns_0/", "my_backward/")]
        [True, False, True]
        """
        texts = [re.compile(text) for text in self.prefixed_patterns.values()]
        names = [front + entry.name for entry in self.entries(Sizes(1, 1))]
        matches = [match for name in names for text in texts if (match := text.fullmatch(name))]
        return any(len(match[1]) < len(front) for match in matches)

    def tails(self, template: str) -> tuple[str, ...]:
        """Returns the endings, without digits, of the possible names of the array with this template: one per
        spelling of the direction. They are keys for a fast search.

        >>> gru = Record("mine.gru", "gru", {"w_l{L}{D}": "W[(g:rzn h) x]", "u0": "R[(g:rzn h) k]"})
        >>> gru.tails("w_l{L}{D}"), gru.tails("u0")
        (('forward/', 'backward/'), ('u',))
        """
        names = dict.fromkeys(
            self.full[template].replace("{D}", spelling) for spelling in self.direction_spellings
        )
        ends = [re.split(r"\{[LDC]/?\}", name.removesuffix("{L}"))[-1] for name in names]
        return tuple(end.rstrip(digits) for end in ends)

    def same_as(self, other: "Record") -> bool:
        """Tells if another record (layout) has equal arrays and function; names and evidence do not count."""
        return self.content() == other.content()

    def notation(self, names: set[str]) -> dict[str, tuple[str, int | None, int | None]]:
        """Returns (notation, layer, direction) of each array of these names, to compare layouts (arrangements
        of weights). Unknown names are left out; a layer or direction that a name does not contain is None.
        """
        parsed_names = {name: self.parsed_name(name) for name in names}
        return {
            name: (self.arrays[parsed[0]], *parsed[1:])
            for name, parsed in parsed_names.items()
            if parsed is not None
        }

    def content(self) -> tuple[Any, ...]:
        """Returns a tuple of the arrays and the function that this record (a layout of weights) describes, to
        compare records by: (cell, notations, directions, fixed semantics, allowed and usual values of the
        user's settings).
        """
        fixed = {name: value for name, value in self.semantics.items() if not isinstance(value, Setting)}
        chosen = {name: (value.allowed, value.usual) for name, value in self.settings().items()}
        return self.cell, self.arrays, self.directions, Semantics(self.cell, **fixed), chosen

    def settled(self, stated: Mapping[str, Any]) -> Semantics:
        """Returns the function that weights in this layout (arrangement) parametrise. `stated` has the user's
        values by field of `Semantics`. Raises `LayoutError` if a field stays open or cannot be changed.
        """
        return Semantics.settled(self.name, self.cell, self.semantics, stated)

    def translated(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Translates a framework's settings, by its own names and values, to values by field of `Semantics`.
        Others are ignored. Raises `LayoutError` for a value that the record does not know.
        """
        values: dict[str, Any] = {}
        for name, setting in self.settings().items():
            if setting.name in settings:
                values[name] = setting.ours(self.name, settings[setting.name])
        return values

    def assumed(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Returns {framework's name of a setting: its usual value}, for the report, of the settings that have
        one and that the user does not state. `stated` has the user's values by field of `Semantics`.
        """
        return {
            setting.name: setting.theirs(setting.usual)
            for name, setting in self.settings().items()
            if name not in stated and setting.usual is not None
        }

    def settings(self) -> dict[str, Setting]:
        """Returns the framework's settings that the arrays of this layout (arrangement of weights) leave
        open, by the `Semantics` field that each decides.
        """
        return {name: value for name, value in self.semantics.items() if isinstance(value, Setting)}


def with_index(template: str, pattern: Pattern) -> str:
    """Returns the template of a name without a ? at its end, and with the prefixes {L/} (layer) and {D/}
    (direction), each unless the template or the array's notation, `pattern`, contains the letter.
    """
    name = template.removesuffix("?")
    letters = letters_of(pattern) | placeholders_in(name)
    return "".join(text for letter, text in (("L", "{L/}"), ("D", "{D/}")) if letter not in letters) + name


def letters_in(term: Term) -> set[str]:
    """Returns the letters of the axes of a term (a parameter with its axes), such as {"g", "h", "x"}."""
    return {atom.name for axis in term.axes for atom in axis}


def placeholders_in(name: str) -> set[str]:
    """Returns the fields of a name's template among L (layer) and D (direction); {C} is both."""
    return {letter for letter in "LD" if f"{{{letter}" in name or "{C}" in name}


def loops(pattern: Concatenation | Flat | Loop) -> set[str]:
    """Returns the letters, L (layer) and D (direction), over which parts of `pattern` are repeated."""
    if isinstance(pattern, Concatenation):
        return set()
    over = set(pattern.over) if isinstance(pattern, Loop) else set[str]()
    return over.union(*(loops(segment) for segment in pattern.segments))


def letters_of(pattern: Pattern) -> set[str]:
    """Returns the letters of all axes and loops of a pattern (the parsed notation of an array)."""
    return loops(pattern).union(*(letters_in(term) for term in terms(pattern)))
