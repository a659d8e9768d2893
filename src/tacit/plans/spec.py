"""A study as a TOML file: validated before any work, with errors that name the field, the value and the fix."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tacit.algorithm import Channel, Sampling, ServerRule
from tacit.errors import TacitError, known_keys, unknown
from tacit.privacy.plan import MOST_DELTA

FORMAT = 1
"""The version of the study format that this Tacit reads."""


class StudyError(TacitError):
    """A study that cannot be run as written."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class DataSection(_Section):
    """Which records: the name of a data set and its own options."""

    name: str
    options: dict[str, Any] = {}


class PartitionSection(_Section):
    """How records are given to silos and split; everything absent is the data set's own default."""

    kind: str | None = None
    silos: Count | None = None
    level: float | None = None
    records_per_silo: Count | None = None
    centralisation: Literal["divided", "central-sensitive", "general"] = "divided"
    sensitive_silos: Count | None = None
    validation: float | None = None
    test: float | None = None


class ObjectiveSection(_Section):
    """What is learnt; ``hidden`` are the widths of a network's dense layers, ``channels`` of its convolutions.

    ``activation`` is what lies between the dense layers of an ``mlp``, ``relu`` unless it is given. ``bins`` are equal
    parts of the time that a ``piecewise-exponential`` loss has a hazard for each. A loss that is not smooth is smoothed
    to ``smoothness`` by its Moreau envelope, or as ``smoothing`` says. ``class_weights`` weigh the records of each
    class, and ``bend`` is where the ``huber`` loss becomes a line. These of a loss may also be said as
    ``loss_options``. A model or loss of somebody's own is registered by a module of ``plugins`` and takes
    ``model_options`` or ``loss_options``. A model may also be registered by an installed package; ``model_digest`` then
    pins the package's source.
    """

    model: str = "linear"
    hidden: tuple[Count, ...] = ()
    channels: tuple[Count, ...] = ()
    activation: Literal["relu", "softplus", "tanh"] | None = None
    loss: str | None = None
    smoothness: Positive | None = None
    smoothing: Literal["moreau", "convolution"] | None = None
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    bins: Annotated[int, Field(ge=1, le=1000)] | None = None
    class_weights: tuple[Positive, ...] | None = None
    bend: Positive | None = None
    regulariser: str | dict[str, Any] = "zero"
    model_options: dict[str, Any] = {}
    model_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    loss_options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _options_of_ours(cls, tree: Any) -> Any:
        """Options of Tacit's own losses are keys of the section, so that a plan has one form."""
        from tacit.objectives.losses import LOSSES, OPTIONS

        options = tree.get("loss_options") if isinstance(tree, dict) else None
        if not isinstance(options, dict) or not options or tree.get("loss") not in (*LOSSES, None):
            return tree
        known = OPTIONS.get(tree.get("loss") or "softmax", ())
        for key in options:
            if key not in known:
                own = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"loss {tree.get('loss')!r} has no option {key!r}; {own}")
            if tree.get(key) is not None:
                raise ValueError(f"set {key} once, beside loss or in loss_options")
        return {**{key: own for key, own in tree.items() if key != "loss_options"}, **options}

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        from tacit.objectives.models import MODELS, UNREGISTERED, known_models

        if value not in MODELS and value not in known_models():
            raise ValueError(f"{unknown('model', value, known_models())} {UNREGISTERED}".rstrip("."))
        return value

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str | None) -> str | None:
        from tacit.objectives.losses import LOSSES, OWN_LOSSES

        if value is not None and value not in (*LOSSES, *OWN_LOSSES):
            raise ValueError(unknown("loss", value, (*LOSSES, *OWN_LOSSES)).rstrip("."))
        return value

    @model_validator(mode="after")
    def _options_are_of_ones_own(self) -> ObjectiveSection:
        from tacit.objectives.models import MODELS

        if (self.model_options or self.model_digest) and self.model in MODELS:
            raise ValueError(
                f'leave model_options and model_digest out where model = "{self.model}"; they are for registered models'
            )
        return self

    @model_validator(mode="after")
    def _belongs(self) -> ObjectiveSection:
        if (self.model == "mlp") != bool(self.hidden) and self.model != "cnn":
            raise ValueError('set hidden = [widths] where model = "mlp", and nowhere but there and for "cnn"')
        if self.channels and self.model != "cnn":
            raise ValueError('set channels = [numbers] only where model = "cnn"')
        if self.activation is not None and self.model != "mlp":
            raise ValueError('set activation only where model = "mlp"')
        if (self.loss == "pinball") != (self.quantile is not None):
            raise ValueError('set quantile, such as 0.5 for the median, exactly where loss = "pinball"')
        if self.class_weights is not None and self.loss not in (None, "logistic", "softmax"):
            raise ValueError('set class_weights only where loss is "logistic" or "softmax"')
        if self.bend is not None and self.loss != "huber":
            raise ValueError('set bend only where loss = "huber"')
        if self.bins is not None and self.loss != "piecewise-exponential":
            raise ValueError('set bins, of time, only where loss = "piecewise-exponential"')
        if self.smoothness is not None and self.loss not in ("hinge", "absolute", "pinball"):
            raise ValueError(
                'set smoothness only for the losses "hinge", "absolute" and "pinball", which are not smooth'
            )
        if self.smoothing is not None and self.smoothness is None:
            raise ValueError('set smoothing = "moreau" or "convolution" only together with smoothness')
        return self


class PreprocessingSection(_Section):
    """Standardisation of columns by private statistics, which take their share of each silo's epsilon.

    ``norm`` bounds each record's features afterwards; ``quantiles`` are moved to -1 and 1; ``bins`` divide [-1, 1].
    """

    standardise: Literal["moments", "quantiles", "histogram"]
    columns: tuple[str, ...] = Field(min_length=1)
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    norm: Positive = 1.0
    bins: Annotated[int, Field(ge=2, le=1024)] = 16
    quantiles: tuple[float, float] = (0.05, 0.95)

    @model_validator(mode="after")
    def _sensible(self) -> PreprocessingSection:
        if self.bins & (self.bins - 1):
            raise ValueError(f"expected bins={self.bins} to be a power of two, such as 16")
        if not 0 < self.quantiles[0] < self.quantiles[1] < 1:
            raise ValueError("expected quantiles such as [0.05, 0.95], in order and between 0 and 1")
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("expected different columns; name each once")
        return self


QUESTIONS = ("statistics", "validation")
"""What is asked without training anything: every record counts alike, in cells whose bound is known."""

ONE_ROUND = (*QUESTIONS, "ridge")
"""Algorithms of one round, in which no step is taken."""


class AlgorithmSection(BaseModel):
    """How it is learnt; keys beyond these are the algorithm's own. ``server`` is the rule of the server's steps."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    channel: Channel = "direct"
    num_rounds: Count
    batch_size: Count | None = None
    sampling: Sampling | None = None
    step_size: Positive | tuple[Positive, ...]
    clip_norm: Positive | None = None
    capacity: Count | None = None
    server: ServerRule = "sgd"

    @model_validator(mode="before")
    @classmethod
    def _one_round(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or tree.get("name") not in ONE_ROUND:
            return tree
        name = tree["name"]
        if tree.get("num_rounds", 1) != 1 or tree.get("sampling", "full") != "full" or tree.get("batch_size"):
            raise ValueError(f"leave num_rounds, sampling and batch_size out: {name} reads every record in one round")
        return {"step_size": 1.0, **tree, "num_rounds": 1}

    @model_validator(mode="after")
    def _batch_fits_sampling(self) -> AlgorithmSection:
        if self.sampling == "full" and self.batch_size is not None:
            raise ValueError('leave batch_size out for sampling = "full"')
        if self.sampling not in (None, "full") and self.batch_size is None:
            raise ValueError(f'set batch_size for sampling = "{self.sampling}"')
        if self.capacity is not None and self.scheme not in ("poisson", "allocation"):
            raise ValueError(
                f'leave capacity out for sampling = "{self.scheme}": only batches of sampling = "poisson" or '
                '"allocation" have a limit'
            )
        return self

    @property
    def scheme(self) -> Sampling:
        """The sampling in force: Poisson for mini-batches, else the full batch."""
        return self.sampling or ("full" if self.batch_size is None else "poisson")

    @property
    def own(self) -> dict[str, Any]:
        """The algorithm's own parameters."""
        return dict(self.model_extra or {})


class PrivacySection(_Section):
    """The budget of each silo; no epsilon and no noise multiplier means not private."""

    epsilon: Positive | tuple[Positive, ...] | None = None
    noise_multiplier: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    accountant: Literal["tight", "rdp", "zcdp", "paper"] = "tight"
    protects: Literal["record", "sensitive-attribute"] = "record"
    max_participations: Count | None = None
    user_level: bool = False

    @field_validator("delta")
    @classmethod
    def _delta_promises(cls, value: float) -> float:
        if value >= MOST_DELTA:
            raise ValueError(
                f"expected delta < {MOST_DELTA:g}, for with that probability nothing is promised; 1e-6 is usual, and "
                "less than one over the records of the smallest silo is needed for a promise to each of them"
            )
        return value

    @model_validator(mode="after")
    def _one_of_two(self) -> PrivacySection:
        if self.user_level and (self.epsilon is None or self.accountant == "paper"):
            raise ValueError("set epsilon for user_level = true, of a whole silo's data, and an accountant of ours")
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError("set epsilon or noise_multiplier, not both: each follows from the other")
        return self

    @property
    def private(self) -> bool:
        """Whether anything is protected."""
        return self.epsilon is not None or self.noise_multiplier is not None


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A tree of sections with one dotted key for each leaf."""
    found: dict[str, Any] = {}
    for key, part in tree.items():
        found |= _flat(part, f"{above}{key}.") if isinstance(part, dict) else {f"{above}{key}": part}
    return found


class RunSection(_Section):
    """Repetitions, participation, and a grid of settings."""

    seeds: Count | tuple[int, ...] = 1
    participants: Count | tuple[Count, Count] | None = None
    weights: Literal["equal", "records"] = "equal"
    honest: Annotated[float, Field(gt=0, le=1)] = 1.0
    measure_every: Count | None = None
    stationarity: bool = False
    converged: bool = True
    alone: bool = True
    grid: dict[str, tuple[Any, ...]] = {}

    @field_validator("grid", mode="before")
    @classmethod
    def _flat_keys(cls, value: Any) -> Any:
        """``{"privacy.epsilon": [...]}``; sections within it, as ``--set run.grid.privacy.epsilon`` makes, are too."""
        flat = _flat(value) if isinstance(value, dict) else {}
        for key, values in flat.items():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"expected a list of values such as [1, 4] for {key}")
        return flat if isinstance(value, dict) else value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(value, tuple) and (not value or len(set(value)) != len(value) or min(value) < 0):
            raise ValueError("give a number of seeds, or a list of different seeds >= 0")
        return value

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds as a list."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


class PairwiseSection(_Section):
    """What pairwise sums count on: at most ``colluding`` silos work together with the server.

    A round has at least ``min_silos`` silos (all that take part unless it is given). Up to ``spare_attempts`` rounds in
    which somebody is missing may be asked again with others; they are priced in advance.
    """

    colluding: Count = 1
    min_silos: Count | None = None
    spare_attempts: Annotated[int, Field(ge=0)] = 0


class ValidationSection(_Section):
    """How a deployed study ends: its model is tested on records that silos have set aside, unless ``run`` is false.

    ``epsilon`` is paid from those records' own account; the study's, unless it is given. ``threshold`` is the
    probability from which a class is predicted, ``bins`` are those of scores (20, and 10 of risks). ``residual`` is the
    largest error of a number that counts, as a share of its range. ``groups`` are categories, by whose levels it is
    told too. ``own`` counts the models of silos' own beside the shared one, in the same release; by default where the
    algorithm makes such.
    """

    run: bool = True
    own: bool | None = None
    epsilon: Positive | None = None
    bins: Annotated[int, Field(ge=2, le=200)] | None = None
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    residual: Annotated[float, Field(gt=0, le=1)] = 1.0
    groups: tuple[str, ...] = ()


class RehearsalSection(_Section):
    """How settings were chosen on made-up records: the seed of the draw, and how much was tried. It costs nothing."""

    seed: Annotated[int, Field(ge=0)]
    teachers: Count
    points: Count


class PluginsSection(_Section):
    """Python modules that register algorithms, losses or models of one's own; they are imported where a study is read.

    Silos import nothing: a study with plugins is simulated.
    """

    modules: tuple[str, ...] = ()


class Study(_Section):
    """An experiment: data, partition, objective, algorithm, privacy, run."""

    format: int = FORMAT
    name: str
    title: str = ""
    data: DataSection
    partition: PartitionSection = PartitionSection()
    objective: ObjectiveSection = ObjectiveSection()
    preprocessing: PreprocessingSection | None = None
    algorithm: AlgorithmSection
    privacy: PrivacySection = PrivacySection()
    pairwise: PairwiseSection = PairwiseSection()
    baseline: dict[str, Any] = {}
    run: RunSection = RunSection()
    validation: ValidationSection = ValidationSection()
    plugins: PluginsSection = PluginsSection()
    rehearsal: RehearsalSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _statistics_weigh_records(cls, tree: Any) -> Any:
        algorithm = tree.get("algorithm") if isinstance(tree, dict) else None
        if not isinstance(algorithm, dict) or algorithm.get("name") not in QUESTIONS:
            return tree
        return {**tree, "run": {**tree.get("run", {}), "weights": "records"}}

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if self.privacy.private:
            if self.algorithm.channel == "open":
                raise ValueError('algorithm.channel = "open" releases without noise; leave out privacy.epsilon')
            if self.algorithm.clip_norm is None and self.algorithm.name not in QUESTIONS:
                raise ValueError("algorithm.clip_norm is needed for a private run; set it to a norm bound > 0")
        if self.preprocessing is not None:
            _check_preprocessing(self.privacy, self.run)
        return self


def _check_preprocessing(privacy: PrivacySection, run: RunSection) -> None:
    """Raise unless statistics and training can be priced together."""
    if privacy.epsilon is None:
        raise ValueError("preprocessing takes a share of privacy.epsilon; set it, or leave preprocessing out")
    if privacy.accountant != "tight" or privacy.user_level or privacy.protects != "record":
        raise ValueError(
            'preprocessing is priced with training for whole records by accountant = "tight"; set that, without '
            "user_level, or leave preprocessing out"
        )
    if "privacy.epsilon" in run.grid:
        raise ValueError("run.grid: epsilon cannot vary with preprocessing, whose statistics are released once")


def study_names() -> tuple[str, ...]:
    """The studies that ship with the package."""
    folder = resources.files("tacit.studies") / "files"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


def load_study(source: str | Path, overrides: Iterable[str] = ()) -> Study:
    """A study by name or path, with ``section.key=value`` overrides applied.

    A folder of CSV silos that the study names is looked for beside the study's file.
    """
    study = parse_study(_read(source), overrides)
    folder = study.data.options.get("folder")
    if not Path(source).is_file() or not isinstance(folder, str):
        return study
    options = {**study.data.options, "folder": str(Path(source).resolve().parent / folder)}
    return study.model_copy(update={"data": study.data.model_copy(update={"options": options})})


def parse_study(text: str, overrides: Iterable[str] = ()) -> Study:
    """A study from TOML text."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"The study is not valid TOML: {error}.") from None
    version = tree.get("format", FORMAT)
    if version != FORMAT:
        raise StudyError(
            f"Expected format={FORMAT}, got format={version!r}: the study was written for another version of Tacit; "
            "install that version, or bring the file up to date and set format accordingly."
        )
    for override in overrides:
        _override(tree, override)
    _import_plugins(tree.get("plugins"))
    return study_from(tree)


def _import_plugins(section: Any) -> None:
    """Import the modules that a study names, which register what it names; never called for a plan."""
    modules = section.get("modules", ()) if isinstance(section, dict) else ()
    for name in modules if isinstance(modules, list) else ():
        try:
            importlib.import_module(str(name))
        except ImportError as error:
            raise StudyError(
                f"plugins.modules: {name!r} cannot be imported ({error}); install it, or put its folder on PYTHONPATH."
            ) from None


def study_from(tree: dict[str, Any]) -> Study:
    """A study from a tree of plain values."""
    try:
        return Study.model_validate(tree)
    except ValidationError as error:
        raise StudyError(_explain(error, tree)) from None


def unknown_parameters(section: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a study's [algorithm] that its algorithm does not have, each with what may have been meant."""
    from tacit.plans.catalogue import known_algorithms

    entry = known_algorithms().get(str(section.get("name")))
    if entry is None:
        return {}
    known = set(entry.parameters) | set(AlgorithmSection.model_fields)
    return {key: unknown(f"parameter of {entry.name}", key, known) for key in section if key not in known}


def _read(source: str | Path) -> str:
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        if (path / "study.toml").is_file():
            raise StudyError(f"{path} is a folder; its study is {path / 'study.toml'}.")
        if not path.is_file():
            raise StudyError(
                f"No study file at {path}; give a path to a TOML file or a name: {_listed()}. From a folder of one CSV "
                "file per silo `tacit init FOLDER` makes one."
            )
        if path.suffix == ".csv":
            raise StudyError(
                f"{path} holds records and is not a study; `tacit init {path.parent}` makes one from its folder."
            )
        return path.read_text(encoding="utf-8")
    if str(source) not in study_names():
        raise StudyError(unknown("study", str(source), study_names()) + " A path to a .toml file works too.")
    return (resources.files("tacit.studies") / "files" / f"{source}.toml").read_text(encoding="utf-8")


def _listed() -> str:
    return ", ".join(study_names())


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise StudyError(f"Expected --set section.key=value, got {override!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    node = tree
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise StudyError(f"Expected {part!r} in --set {override} to be a section of the study.")
    if isinstance(value, str) and value.lower() in ("none", "null"):
        node.pop(parts[-1], None)
    else:
        node[parts[-1]] = value


def _explain(error: ValidationError, tree: Mapping[str, Any]) -> str:
    section = tree.get("algorithm")
    # A misspelt parameter is no validation error, but the right one then seems to be missing: name it too.
    strange = unknown_parameters(section) if isinstance(section, dict) else {}
    lines: dict[str, str] = {f"algorithm.{key}": f"algorithm.{key}: {text}" for key, text in strange.items()}
    for problem in error.errors():
        place = ".".join(
            str(part) for part in problem["loc"] if not str(part).startswith(("constrained", "tuple", "function"))
        )
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            section, _, key = place.rpartition(".")
            text = unknown("key", key, known_keys(Study, [section] if section else []))
            homes = [f"{name}.{key}" for name in Study.model_fields if key in known_keys(Study, [name])]
            if homes and not section:
                text = f"Unknown key {key!r}; did you mean {' or '.join(homes)}?"
        elif problem["type"] == "missing":
            text = f"missing; set it in the study or with --set {place}=VALUE."
        elif problem["type"] == "literal_error":
            text = unknown(
                place.rpartition(".")[2], problem["input"], re.findall(r"'(.+?)'", problem["ctx"]["expected"])
            )
        elif message.startswith("Unknown "):
            text = f"{message}."
        else:
            got = "" if isinstance(problem["input"], dict | BaseModel) else f", got {problem['input']!r}"
            text = f"{message}{got}."
        lines.setdefault(place, f"{place}: {text}" if place else text)
    return "The study cannot be run:\n  " + "\n  ".join(lines.values())
