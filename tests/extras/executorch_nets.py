"""Plainly written networks, exported to ExecuTorch as users do."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        plain = before == width and stride == 1
        self.around: nn.Module = nn.Identity() if plain else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.around(x))


class ResidualNet(nn.Module):
    """A residual network with named parts, because the exporter does not fuse parts that have only numbers."""

    def __init__(self, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        body, before = list[nn.Module](), width
        for stage in range(4):
            for block in range(blocks):
                body.append(ResidualBlock(before, width << stage, 2 if stage and not block else 1))
                before = width << stage
        self.body = nn.Sequential(*body)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(self.stem(x)))
        return scores


def resnet(width: int = 64, blocks: int = 2, classes: int = 1000) -> nn.Module:
    """ResNet-18 with these defaults."""
    torch.manual_seed(0)
    return ResidualNet(width, blocks, classes).eval()


class TokenScores(nn.Module):
    """Scores of token ids. One input is a plain value."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scale: float) -> Any:
        held = self.table(input_ids) * attention_mask.unsqueeze(-1)
        return {"logits": self.scores(held), "held": torch.cumsum(held, 1) * scale}


class RunningSum(nn.Module):
    """A network with state."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def quantised(net: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    """The network with 8-bit weights and activations."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(net, args).module(), quantizer)
    prepared(*args)
    return convert_pt2e(prepared)


def exported(
    net: nn.Module,
    args: tuple[Any, ...],
    keywords: dict[str, Any] | None = None,
    shapes: Any = None,
    *,
    xnnpack: bool = True,
) -> bytes:
    """The network as a .pte file."""
    program = torch.export.export(net, args, keywords, dynamic_shapes=shapes)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()] if xnnpack else [])
    return bytes(lowered.to_executorch().buffer)
