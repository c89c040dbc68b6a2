"""DTensor parameters (FSDP2): this rank's shard, sums over all shards, tensors of a parameter's layout."""
import ctypes as C
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _library as L

LAYOUT = "Shard(0) in one dimension of the mesh, Replicate in the others"


class Shard(NamedTuple):
    """Rows of a parameter on this rank. group: the ranks that have the others; None: all rows are here."""

    row: int
    rows: int
    group: Any


def is_dtensor(t: Any) -> bool:
    return type(t).__name__ == "DTensor"


def local_tensor(t: Tensor) -> Tensor:
    """Returns this rank's part of a DTensor; any other tensor is returned as it is."""
    if not is_dtensor(t):
        return t
    with torch.no_grad():
        local: Tensor = t.to_local()  # type: ignore[attr-defined]
    return local


def shard_of(name: str, p: Any) -> Shard:
    """Returns the rows of a DTensor on this rank. ValueError: its layout is not supported."""
    dims = [d for d, placement in enumerate(p.placements) if not placement.is_replicate()]
    if not dims:
        return Shard(0, p.shape[0] if p.dim() else 1, None)
    at, coordinate = p.placements[dims[0]], p.device_mesh.get_coordinate()
    if len(dims) > 1 or type(at).__name__ != "Shard" or at.dim != 0 or coordinate is None:
        raise ValueError(f"parameter {name} has placements {p.placements}, expected {LAYOUT}")
    each = -(-p.shape[0] // p.device_mesh.size(dims[0]))
    row = min(each * coordinate[dims[0]], p.shape[0])
    rows, found = min(each, p.shape[0] - row), local_tensor(p).shape[0]
    if found != rows:
        raise ValueError(f"parameter {name} has {found} of {p.shape[0]} rows here, expected {rows}")
    return Shard(row, rows, p.device_mesh.get_group(dims[0]))


def dtensor_like(p: Any, local: Tensor) -> Tensor:
    """Returns a DTensor of p's layout with this rank's part, which may have different dimensions after the
    first."""
    shape = torch.Size((*p.shape[:1], *local.shape[1:])) if p.dim() else local.shape
    stride = torch.empty(shape, device="meta").stride()
    made: Tensor = type(p).from_local(local, p.device_mesh, p.placements, run_check=False, shape=shape,
                                      stride=stride)
    return made


class RankSum:
    """Adds the library's sums over all ranks of a group (struct meopt_options.reduce)."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.ranks = (f(group) for f in (torch.distributed.get_rank, torch.distributed.get_world_size))
        self.failure: Optional[BaseException] = None
        self.reduce = L.REDUCE(self._reduce)

    def _reduce(self, _context: Any, values: int, count: int) -> int:
        try:  # nothing can be raised through the library
            if count:
                host = torch.frombuffer((C.c_double * count).from_address(values), dtype=torch.float64)
                sums = host.to(self.device)
                torch.distributed.all_reduce(sums, group=self.group)
                host.copy_(sums)
        except BaseException as failure:
            self.failure = failure
            return 1
        return 0
