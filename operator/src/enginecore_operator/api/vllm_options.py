"""Options of `vllm serve` that a spec says elsewhere, or that no engine of a pod can have."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from enginecore_operator.api.schema import Rule

if TYPE_CHECKING:
    from enginecore_operator.api.runtime import Runtime


class OwnedOption(NamedTuple):
    """Options that args may not hold, by their long and short names, and what to do instead."""

    long: tuple[str, ...]
    short: tuple[str, ...]
    remedy: str


OWNED: Final = (
    OwnedOption(("--tensor-parallel-size",), ("-tp",), "set parallelism.tensor instead"),
    OwnedOption(("--pipeline-parallel-size",), ("-pp",), "set parallelism.pipeline instead"),
    OwnedOption(("--served-model-name",), (), "set model.servedName instead"),
    OwnedOption(("--model",), (), "set model.name and model.source instead"),
    OwnedOption(
        ("--data-parallel-",),
        ("-dp",),
        "each engine is one rank and runs alone; set replicas for more of them",
    ),
    OwnedOption(
        ("--nnodes", "--node-rank", "--master-addr", "--master-port"),
        ("-n", "-r"),
        "an engine runs on one node; leave it out",
    ),
    OwnedOption(
        ("--headless", "--api-server-count", "--host", "--port", "--uds", "--grpc"),
        ("-asc",),
        "engines serve no API of their own; leave it out",
    ),
    OwnedOption(
        ("--config",), (), "a file may hold options that are refused here; write them into args"
    ),
)


def option_rules() -> tuple[Rule, ...]:
    """Return a rule for each of OWNED over a Runtime of type vllm."""
    return tuple(
        Rule(_condition(owned), f"{_names(owned)}: {owned.remedy}", ".args", _checker(owned))
        for owned in OWNED
    )


def is_owned(owned: OwnedOption, argument: str) -> bool:
    """Tell whether `argument` gives one of these options.

    vLLM takes long options with dashes or underscores and cut short, as long as they are
    unmistakable, and short ones cut short, or with their value in the same word.
    """
    word = argument.partition("=")[0].replace("_", "-")
    if not word.startswith("--"):
        cut = len(word) > 1 and any(name.startswith(word) for name in owned.short)
        return cut or word.startswith(owned.short)
    return any(name.startswith(word) or _goes_on(name, word) for name in owned.long)


def _goes_on(name: str, word: str) -> bool:
    """Tell whether a name stands for all that begin with it, and the word is one of these."""
    return name.endswith("-") and word.startswith(name)


def _checker(owned: OwnedOption) -> Callable[["Runtime"], bool]:
    return lambda runtime: (
        runtime.type != "vllm" or not any(is_owned(owned, argument) for argument in runtime.args)
    )


def _condition(owned: OwnedOption) -> str:
    """Write `is_owned` for all args in CEL."""
    families = [name for name in owned.long if name.endswith("-")]
    tests = [f"{_words(owned.long)}.exists(name, name.startsWith(word))"]
    tests += [f"word.startsWith('{name}')" for name in families]
    found = f"(word.startsWith('--') && ({' || '.join(tests)}))"
    for name in owned.short:
        found += f" || word.startsWith('{name}')"
        cuts = [f"'{name[:end]}'" for end in range(2, len(name))]
        found += f" || word in [{', '.join(cuts)}]" if cuts else ""
    words = "self.args.map(argument, argument.split('=')[0].replace('_', '-'))"
    return f"self.type != 'vllm' || !has(self.args) || !{words}.exists(word, {found})"


def _words(names: Sequence[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names)
    return f"[{quoted}]"


def _names(owned: OwnedOption) -> str:
    return ", ".join(f"{name}*" if name.endswith("-") else name for name in owned.long)
