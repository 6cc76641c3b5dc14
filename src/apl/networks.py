"""Encoder and decoder in torch, on any device.

The learner passes arrays in and gets arrays back; in between everything is a tensor on the networks' device.
`apl.exported` is the same without torch, for inference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.config import DeviceName, IdentityConfig, LearnerConfig
from apl.decoder import build_decoder
from apl.decoder.inputs import Neighbourhood
from apl.encoder import Encoder, IdentityEncoder, build_encoder, scale_bytes
from apl.memory import Neighbours
from apl.posterior import Posterior

CPU = torch.device("cpu")


def find_device(name: DeviceName = "auto") -> torch.device:
    """Where networks compute: `auto` is the best device available; a named device that is not available is an error."""
    there: dict[DeviceName, bool] = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind in there if there[kind])
    if not there[name]:
        others = ", ".join(kind for kind, found in there.items() if found)
        raise ValueError(f"there is no {name} device here that torch can use: choose --device auto or {others}")
    return torch.device(name)


class TorchNetworks(nn.Module):
    """An encoder and a decoder; new weights unless these two are given."""

    def __init__(self, config: LearnerConfig, encoder: Encoder | None = None, decoder: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder or build_encoder(config.encoder)
        self.decoder = decoder or build_decoder(config.decoder, self.encoder.width)

    @property
    def width(self) -> int:
        return self.encoder.width

    @property
    def key_widths(self) -> Mapping[str, int]:
        return self.encoder.key_widths

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), CPU)

    def tensor(self, array: Any) -> Tensor:
        """An array (or tensor) as a tensor on the networks' device."""
        if not isinstance(array, Tensor):
            array = torch.from_numpy(np.ascontiguousarray(array))
        moved: Tensor = array.to(self.device)
        return moved

    def array(self, tensor: Any) -> np.ndarray:
        """A tensor as an array, without gradient."""
        if not isinstance(tensor, Tensor):
            return np.asarray(tensor)
        # numpy knows no bfloat16.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().numpy()

    def embed(self, x: Any) -> Float[Tensor, "example embed"]:
        """`x` is `[example, *input]`; byte images are scaled to 0..1."""
        embedding: Tensor = self.encoder(scale_bytes(self.tensor(x)))
        return embedding

    def decode(
        self, query: Float[Tensor, "query embed"], neighbours: Neighbours, log_elsewhere: np.ndarray
    ) -> Posterior:
        """`neighbours` are those of all the queries, in their order."""
        said = self.decoder(query, self.neighbourhood(query, neighbours, log_elsewhere))
        # Probabilities are in full precision even under autocast.
        return Posterior(**{name: None if value is None else value.float() for name, value in vars(said).items()})

    def neighbourhood(self, query: Tensor, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Neighbourhood:
        """Recalled arrays become tensors; the distance becomes live, so that it carries gradient into the query."""

        def flat(array: np.ndarray) -> Tensor:
            return self.tensor(array.reshape(-1, *array.shape[2:]))

        columns = neighbours.columns
        rows = flat(columns["embedding"])
        distance, mask = flat(neighbours.distance), flat(neighbours.mask)
        if self.config.distance_gradient and query.requires_grad and torch.is_grad_enabled():
            apart = query[:, None] - rows
            if self.config.metric == "cosine":
                apart = nn.functional.normalize(query, dim=-1)[:, None] - nn.functional.normalize(rows, dim=-1)
            if neighbours.compared is not None:
                apart = apart * self.tensor(neighbours.compared)
            live = torch.linalg.vector_norm(apart, dim=-1).masked_fill(~mask, 0)
            # The value stays the memory's to the last bit; only the gradient is added.
            distance = live + (distance - live.detach())
        same, label = flat(neighbours.same), flat(columns["label"])
        return Neighbourhood(rows, distance, mask, same, flat(log_elsewhere), label)

    def fingerprint(self) -> str:
        """Identifies the encoder whose embeddings a memory holds: keys of different encoders cannot be compared."""
        digest = hashlib.sha256(repr(self.encoder.config).encode())
        for name, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode())
            digest.update(self.array(tensor.contiguous().half()).tobytes())
        return digest.hexdigest()[:16]

    def on_embeddings(self) -> TorchNetworks:
        """The same decoder, for inputs that are already embedded."""
        vectors = IdentityEncoder(IdentityConfig(self.width), self.key_widths)
        return TorchNetworks(self.config, vectors, self.decoder).train(self.training)
