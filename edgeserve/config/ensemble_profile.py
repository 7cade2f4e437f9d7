"""The profile of an ensemble, from its history: how often each subset of its models agrees with all of them.

One JSON file per ensemble, plain numbers that people can read and compare. ``edgeserve profile --fit`` writes the file,
``sched/plan`` and ``sched/published/schemble`` plan with it. This module holds the record, its checks, its reading and
writing; fitting is ``commands/``'s.

A *subset* of the models is a number: bit k stands for ``models[k]``, 0 for no model, ``2**m - 1`` for all.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from edgeserve.config.readers import entry, number, read_table, string, table_of, tuple_of
from edgeserve.config.text_files import read_json, write_file
from edgeserve.errors import ConfigError

FORMAT = 1
"""Version of the file format; a file of another version is refused with that reason."""

KEY = "edgeserve_ensemble"
"""The key of the file's version, by which the file is known for what it is."""

MODELS_MAX = 10
"""Models of an ensemble: a table of 2**10 subsets per bin is what a person may still want to read."""

BINS_MAX = 100

ROUNDING = 1e-9
"""The most by which a number may miss its bound, since decimals were rounded."""

Row = Tuple[float, ...]
"""One number per subset of the models."""

ROW = tuple_of(number(-1e300, 1e300))
"""The reader of finite numbers."""


@dataclass(frozen=True)
class ObservedTable:
    """The expected agreement given finished models' outputs: the tables of one set of models that have answered.

    ``edges`` divide the lead of the winning label (:func:`lead_of`) into bins, rising. ``agreement[lead][score]`` is a
    row: for each subset that holds the set, the chance that the subset's answer is that of all models; other subsets
    count 0.
    """

    edges: Row = entry(ROW, ())
    agreement: Tuple[Tuple[Row, ...], ...] = entry(tuple_of(tuple_of(ROW)), ())


def _observed(value: Any, where: str) -> Dict[int, ObservedTable]:
    """Tables by the number of the models that have answered."""
    found = table_of(lambda item, place: read_table(ObservedTable, item, place))(value, where)
    if not all(key.isdecimal() for key in found):
        raise ConfigError(f"{where} = {list(found)}: expected the numbers of models as keys")
    return {int(key): table for key, table in found.items()}


@dataclass(frozen=True)
class EnsembleProfile:
    """The accuracy profile of one ensemble (Schemble, section V; ``docs/guide/ensembles.md``).

    ``models`` are nodes of the app, the predecessors of its join ``join`` ("" = the only join). ``score`` names the
    hint that tells a request's difficulty, from 0 (all models agree) to 1; ``edges`` divide it into bins, rising.
    ``agreement[b][s]`` is the chance that subset s answers a request of bin b as all models would: 0 for no model, 1
    for all, and never less than for a part of s. ``shares`` is how much of the history lies in each bin (empty: the
    same in each). ``weights`` are the votes of the models (empty: one each). ``observed``, by the set of models that
    have answered, is what their outputs say; ``score_edges`` divide the score for that.
    """

    models: Tuple[str, ...] = entry(tuple_of(string))
    edges: Row = entry(ROW)
    agreement: Tuple[Row, ...] = entry(tuple_of(ROW))
    score: str = entry(string, "difficulty")
    join: str = entry(string, "")
    shares: Row = entry(ROW, ())
    weights: Row = entry(ROW, ())
    observed: Dict[int, ObservedTable] = entry(_observed, factory=dict)
    score_edges: Row = entry(ROW, ())

    def __post_init__(self) -> None:
        _check(self)

    @property
    def all_models(self) -> int:
        """The subset of all models."""
        return (1 << len(self.models)) - 1

    def row(self, score: Optional[float]) -> Row:
        """The agreement of each subset for a request of this difficulty; for one of unknown difficulty the mean."""
        if score is None or not math.isfinite(score):
            return self.mean_row()
        return self.agreement[bisect_right(self.edges, score)]

    def mean_row(self) -> Row:
        """The agreement of each subset over all of the history."""
        bins = len(self.agreement)
        shares = self.shares or (1.0 / bins,) * bins
        total = sum(shares)
        mean = [
            sum([share * row[subset] for share, row in zip(shares, self.agreement)]) / total
            for subset in range(1 << len(self.models))
        ]
        mean[-1] = 1.0
        return tuple(mean)

    def observed_row(self, answered: int, lead: float, score: Optional[float]) -> Optional[Row]:
        """The agreement of each subset that holds ``answered``, given the outputs of those models; None where the
        history does not tell."""
        table = self.observed.get(answered)
        if table is None:
            return None
        rows = table.agreement[bisect_right(table.edges, lead)]
        middle = len(rows) // 2
        return rows[middle if score is None or not math.isfinite(score) else bisect_right(self.score_edges, score)]


def lead_of(votes: Sequence[Tuple[float, float, float]]) -> float:
    """The lead of the winning label, from 0 to 1: ``votes`` are (label, margin, weight) of each model that has
    answered. A model supports its label with its margin (the distance of its two largest probabilities) times its
    weight; the lead is the winner's support less the next one's, over all weights. Ties go to the smaller label."""
    support: Dict[float, float] = {}
    total = 0.0
    for label, margin, weight in votes:
        support[label] = support.get(label, 0.0) + margin * weight
        total += weight
    if total <= 0.0:
        return 0.0
    ordered = sorted(support.values(), reverse=True)
    return (ordered[0] - (ordered[1] if len(ordered) > 1 else 0.0)) / total


def monotone(row: Sequence[float]) -> Row:
    """A row in which no subset is worth less than a part of it, no model is worth 0 and all are worth 1: a plan
    exploits what noise leaves otherwise."""
    made = [min(1.0, max(0.0, value)) for value in row]
    made[0] = 0.0
    for subset in range(1, len(made)):
        for model in range(len(made).bit_length()):
            if subset >> model & 1:
                made[subset] = max(made[subset], made[subset ^ 1 << model])
    made[-1] = 1.0
    return tuple(made)


# --- files ------------------------------------------------------------------------------------------------------------


def read_ensemble(path: str) -> Optional[EnsembleProfile]:
    """The profile of a file, None where there is no such file. Raises :class:`ConfigError` for a faulty one."""
    table = read_fit(path)
    return None if table is None else parse_ensemble(table.get("profile"), path)


def read_fit(path: str) -> Optional[Dict[str, Any]]:
    """The whole table of a file, with the sections of others (``fit``, ``about``); None where there is no such file."""
    try:
        table = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: is no ensemble file ({error}); make one with 'edgeserve profile --fit'") from None
    if not isinstance(table, dict) or table.get(KEY) != FORMAT:
        found = table.get(KEY) if isinstance(table, dict) else None
        raise ConfigError(
            f"{path}: {KEY} = {found!r}, expected {FORMAT}; make the file again with 'edgeserve profile --fit'"
        )
    return table


def write_ensemble(path: str, profile: EnsembleProfile, **sections: Mapping[str, Any]) -> None:
    """Write a profile, and what else belongs to the ensemble (``fit``, ``about``: plain values), as one file.
    :class:`ConfigError` where that is not possible."""
    write_file(path, dump_ensemble(profile, **sections))


def dump_ensemble(profile: EnsembleProfile, **sections: Mapping[str, Any]) -> str:
    """The text of a file: a row of numbers is one line."""
    table = {KEY: FORMAT, "profile": ensemble_table(profile), **sections}
    return _lines(table, "") + "\n"


def ensemble_table(profile: EnsembleProfile) -> Dict[str, Any]:
    """A profile as plain values, as :func:`parse_ensemble` reads them."""
    table: Dict[str, Any] = {
        "models": list(profile.models),
        "join": profile.join,
        "score": profile.score,
        "edges": list(profile.edges),
        "agreement": [list(row) for row in profile.agreement],
        "shares": list(profile.shares),
        "weights": list(profile.weights),
        "score_edges": list(profile.score_edges),
    }
    table["observed"] = {
        str(answered): {
            "edges": list(known.edges),
            "agreement": [[list(row) for row in rows] for rows in known.agreement],
        }
        for answered, known in sorted(profile.observed.items())
    }
    return table


def parse_ensemble(table: Any, where: str) -> EnsembleProfile:
    """A profile of plain values. :class:`ConfigError` names the key, the value and what was expected."""
    where = f"{where}: profile"
    try:
        return read_table(EnsembleProfile, {"edges": (), **table} if isinstance(table, Mapping) else table, where)
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where} {error}") from None


def _lines(value: Any, indent: str) -> str:
    """JSON that people can read: tables and lists of lists over several lines, lists of numbers on one."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        rows = [f"{inner}{json.dumps(str(key))}: {_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple, Mapping)):
        return "[\n" + ",\n".join(inner + _lines(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value)


def join_of(profile: EnsembleProfile, after: Mapping[str, Sequence[str]]) -> str:
    """The node that joins the models of a profile, of an app whose nodes stand behind the ones in ``after``; ""
    where there is none, or where several do and the profile names none of them."""
    joins = [name for name, before in after.items() if set(profile.models) <= set(before)]
    return profile.join if profile.join in joins else joins[0] if len(joins) == 1 and not profile.join else ""


def check_nodes(profile: EnsembleProfile, after: Mapping[str, Sequence[str]], where: str) -> None:
    """Raise :class:`ConfigError` for the profile of another app: its models are nodes here, and one node joins them."""
    missing = [name for name in profile.models if name not in after]
    if missing:
        raise ConfigError(
            f"{where} ensemble: it was fitted for the models {', '.join(profile.models)}, and the app "
            f"has no node {', '.join(missing)}; name the nodes so, or fit it again"
        )
    if not join_of(profile, after):
        raise ConfigError(
            f"{where} ensemble: {profile.join or 'exactly one node'} must stand behind all of "
            f"{', '.join(profile.models)}; expected a node with after = {list(profile.models)}"
        )


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(profile: EnsembleProfile) -> None:
    """Check the facts that a plan relies on; raises :class:`ConfigError`."""
    count, subsets = len(profile.models), 1 << len(profile.models)
    if not 1 <= count <= MODELS_MAX or len(set(profile.models)) != count:
        raise ConfigError(f"models = {list(profile.models)}: expected 1 to {MODELS_MAX} different nodes")
    _check_rising(profile.edges, "edges")
    _check_rising(profile.score_edges, "score_edges")
    bins = len(profile.edges) + 1
    if len(profile.agreement) != bins or bins > BINS_MAX:
        raise ConfigError(
            f"agreement has {len(profile.agreement)} rows, and {len(profile.edges)} edges make {bins} "
            f"bins: expected a row per bin, {BINS_MAX} at most"
        )
    for index, row in enumerate(profile.agreement):
        if len(row) == subsets and abs(row[-1] - 1.0) > ROUNDING:
            raise ConfigError(
                f"agreement[{index}][{subsets - 1}] = {row[-1]}: expected 1: all models agree with themselves"
            )
        _check_row(row, 0, subsets, f"agreement[{index}]")
    for name, values, expected in (("shares", profile.shares, bins), ("weights", profile.weights, count)):
        if values and (len(values) != expected or min(values) < 0.0 or sum(values) <= 0.0):
            raise ConfigError(f"{name} = {list(values)}: expected {expected} numbers from 0, not all of them 0")
    for answered, table in profile.observed.items():
        _check_observed(profile, answered, table)


def _check_observed(profile: EnsembleProfile, answered: int, table: ObservedTable) -> None:
    what = f"observed.{answered}"
    if not 0 < answered < profile.all_models:
        raise ConfigError(f"{what}: expected the number of some models, from 1 to {profile.all_models - 1}")
    _check_rising(table.edges, f"{what}.edges")
    if len(table.agreement) != len(table.edges) + 1:
        raise ConfigError(
            f"{what}.agreement has {len(table.agreement)} tables: expected {len(table.edges) + 1}, one "
            "per bin of the lead"
        )
    for rows in table.agreement:
        if len(rows) != len(profile.score_edges) + 1:
            raise ConfigError(
                f"{what}.agreement has {len(rows)} rows: expected {len(profile.score_edges) + 1}, one "
                "per bin of score_edges"
            )
        for row in rows:
            _check_row(row, answered, profile.all_models + 1, f"{what}.agreement")


def _check_rising(values: Sequence[float], what: str) -> None:
    if any(after <= before for before, after in zip(values, values[1:])):
        raise ConfigError(f"{what} = {list(values)}: expected rising numbers")


def _check_row(row: Row, base: int, subsets: int, what: str) -> None:
    """``base``: models that every subset of the row must hold; the others count 0."""
    if len(row) != subsets:
        raise ConfigError(f"{what} has {len(row)} numbers: expected {subsets}, one per subset of the models")
    if not base and row[0] != 0.0:
        raise ConfigError(f"{what}[0] = {row[0]}: expected 0: no model answers nothing")
    for subset, value in enumerate(row):
        if not -ROUNDING <= value <= 1.0 + ROUNDING:
            raise ConfigError(f"{what}[{subset}] = {value}: expected a number from 0 to 1")
        for model in range(subsets.bit_length() - 1):
            part = subset & ~(1 << model)
            if subset & base == base and part & base == base and row[part] > value + ROUNDING:
                raise ConfigError(
                    f"{what}[{subset}] = {value} is below [{part}] = {row[part]}, a part of it: expected "
                    "numbers that rise with the models (ensemble_profile.monotone makes them)"
                )
