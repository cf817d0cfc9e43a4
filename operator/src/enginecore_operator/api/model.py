"""The model of an engine, and where its files come from."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from enginecore_operator.api.schema import Rule, Spec

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
MODEL_FILE_SUFFIXES: Final = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""By these a hostPath is known to be a file; any other is a directory."""


class PersistentVolumeClaim(Spec, frozen=True):
    """A claim in the namespace of the engine that holds the model."""

    claim_name: Annotated[str, Meta(min_length=1, max_length=253, description="The claim's name.")]
    path: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^([^/].*)?$",
            description="Directory or file inside the volume; empty: its root.",
        ),
    ] = ""


class ModelSource(Spec, frozen=True):
    """Where the model's files come from: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.hostPath) != has(self.pvc)",
            "give exactly one of hostPath and pvc",
            "",
            lambda source: (source.host_path is None) != (source.pvc is None),
        ),
    )
    host_path: (
        Annotated[
            str,
            Meta(
                min_length=2,
                max_length=1024,
                pattern="^/",
                description="Directory on the node that holds the checkpoint, or its file "
                f"({', '.join(MODEL_FILE_SUFFIXES)}); mounted read-only, never created.",
            ),
        ]
        | None
    ) = None
    pvc: (
        Annotated[
            PersistentVolumeClaim, Meta(description="Persistent volume claim, mounted read-only.")
        ]
        | None
    ) = None


class Model(Spec, frozen=True):
    """The model to serve."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="Name of the model, for example HuggingFaceTB/SmolLM2-135M-Instruct. "
            "Without a source, the image holds the files: an absolute name is their path, any "
            "other is looked for under /models by its last component.",
        ),
    ]
    served_name: Annotated[
        str, Meta(max_length=512, description="Name in metrics; empty: the model's name.")
    ] = ""
    source: (
        Annotated[ModelSource, Meta(description="Where the files come from; absent: the image.")]
        | None
    ) = None
    vocab_size: (
        Annotated[
            int,
            Meta(ge=1, le=2**31 - 1, description="Only where the model's files cannot tell."),
        ]
        | None
    ) = None
