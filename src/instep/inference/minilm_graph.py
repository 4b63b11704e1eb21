"""The ONNX graph of all-MiniLM-L6-v2, written from its safetensors weights: no torch, no download.

Six layers with ONNX Runtime's fused operators (attention, skip + layer norm, bias + GELU); mean pooling over the
real tokens and L2 normalisation are in the graph, so one run gives unit vectors.
Guarded by unit/test_inference_minilm.py, which computes the same in plain numpy.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

LAYOUT = "1"  # part of the cached file's name: raise it whenever the graph changes
LAYERS = 6
HEADS = 12
HIDDEN = 384
EPSILON = 1e-12
_FUSED = "com.microsoft"  # ONNX Runtime's own operators


def cached_graph(weights: Path, cache_dir: Path) -> Path:
    """The path of the graph for these weights (90 MB), built now if it is not in `cache_dir` yet.

    The name holds the SHA-256 of the weights and the layout of the graph. It is written under a temporary name,
    flushed to disk and renamed, so two processes at once are fine and a crash leaves no half of it.
    """
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(LAYOUT.encode())
    path = cache_dir / f"all-MiniLM-L6-v2-{digest.hexdigest()[:20]}.onnx"
    if not path.exists():
        write_graph(weights, path)
    return path


def write_graph(weights: Path, path: Path) -> None:
    """Build the graph and put it at `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = build_graph(weights)
    descriptor, temporary = tempfile.mkstemp(prefix=".building-", suffix=".onnx", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def build_graph(weights: Path) -> bytes:
    """The serialised model: inputs `ids` and `mask`, int32 (n, length); output `vectors`, float32 (n, 384)."""
    import numpy as np
    from onnx import TensorProto, helper
    from safetensors.numpy import load_file

    tensors = load_file(str(weights))
    graph = _Graph()
    embeddings = "embeddings."
    # every token is of type 0, so its row is added to the positions once, here
    positions = (
        tensors[embeddings + "position_embeddings.weight"]
        + tensors[embeddings + "token_type_embeddings.weight"][0]
    )
    words = graph.constant("words", tensors[embeddings + "word_embeddings.weight"])
    looked_up = graph.node("Gather", [words, "ids"])
    length = graph.node("Shape", ["ids"], start=1, end=2)
    places = graph.node(
        "Slice",
        [graph.constant("positions", positions), graph.constant("zero", np.array([0])), length],
    )
    state = graph.node(
        "LayerNormalization",
        [
            graph.node("Add", [looked_up, places]),
            *graph.norm("embeddings.norm", tensors, "embeddings.LayerNorm"),
        ],
        epsilon=EPSILON,
        axis=-1,
    )
    for layer in range(LAYERS):
        state = _layer(graph, tensors, f"encoder.layer.{layer}.", state)

    mask = graph.node("Cast", ["mask"], to=TensorProto.FLOAT)
    row = graph.node("Unsqueeze", [mask, graph.constant("one", np.array([1]))])  # (n, 1, length)
    total = graph.node("Squeeze", [graph.node("MatMul", [row, state]), "one"])  # the sum over the real tokens
    # the mean's divisor falls out of the L2 norm: a sum and a mean point the same way
    graph.node("LpNormalization", [total], output="vectors", axis=-1, p=2)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "all-MiniLM-L6-v2",
            [
                helper.make_tensor_value_info(name, TensorProto.INT32, ["n", "length"])
                for name in ("ids", "mask")
            ],
            [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["n", HIDDEN])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(_FUSED, 1)],
        ir_version=8,
    )
    serialised: bytes = model.SerializeToString()
    return serialised


def _layer(graph: _Graph, tensors: dict[str, np.ndarray], at: str, state: str) -> str:
    import numpy as np

    parts = [f"{at}attention.self.{part}." for part in ("query", "key", "value")]
    attended = graph.node(
        "Attention",
        [
            state,
            graph.constant(at + "qkv", np.concatenate([tensors[p + "weight"].T for p in parts], axis=1)),
            graph.constant(at + "qkv.bias", np.concatenate([tensors[p + "bias"] for p in parts])),
            "mask",
        ],
        domain=_FUSED,
        num_heads=HEADS,
    )
    state = _joined(graph, tensors, at + "attention.output", attended, state)
    wide = graph.linear(at + "intermediate.dense", tensors, state)
    bias = graph.constant(at + "intermediate.bias", tensors[at + "intermediate.dense.bias"])
    wide = graph.node("BiasGelu", [wide, bias], domain=_FUSED)
    return _joined(graph, tensors, at + "output", wide, state)


def _joined(graph: _Graph, tensors: dict[str, np.ndarray], at: str, branch: str, state: str) -> str:
    """Linear, bias, residual and layer norm: how both halves of a layer end."""
    return graph.node(
        "SkipLayerNormalization",
        [
            graph.linear(at + ".dense", tensors, branch),
            state,
            *graph.norm(at + ".norm", tensors, at + ".LayerNorm"),
            graph.constant(at + ".bias", tensors[at + ".dense.bias"]),
        ],
        domain=_FUSED,
        epsilon=EPSILON,
    )


class _Graph:
    """Collects nodes and constants under names of their own."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(
        self, operator: str, inputs: list[str], *, output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        from onnx import helper

        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=output, domain=domain, **attributes)
        )
        return output

    def constant(self, name: str, values: np.ndarray) -> str:
        import numpy as np
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def linear(self, at: str, tensors: dict[str, np.ndarray], state: str) -> str:
        return self.node("MatMul", [state, self.constant(at, tensors[at + ".weight"].T)])

    def norm(self, name: str, tensors: dict[str, np.ndarray], at: str) -> list[str]:
        return [
            self.constant(name, tensors[at + ".weight"]),
            self.constant(name + ".bias", tensors[at + ".bias"]),
        ]
