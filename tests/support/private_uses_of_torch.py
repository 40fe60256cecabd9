"""The smallest use of each private name of torch; each returns its result."""

from __future__ import annotations

import gc
import multiprocessing
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR, StepLR
from torch.utils.data import DataLoader

from fl_lightning.compat import light_steps
from fl_lightning.compat import torch as of_torch

Use = Callable[[Path], Any]


def lists_of_tensors(_: Path) -> Any:
    generator = torch.Generator().manual_seed(0)
    first, second = ([torch.randn(n, generator=generator) for n in (1, 4, 7)] for _ in range(2))
    found = [of_torch.subtract_each(first, second)]
    for change in (
        lambda own: of_torch.add_to_each(own, second, alpha=0.3),
        lambda own: of_torch.copy_to_each(own, second),
        lambda own: of_torch.raise_each_to(own, -0.2),
        lambda own: of_torch.lower_each_to(own, 0.2),
    ):
        found.append([tensor.clone() for tensor in first])
        change(found[-1])
    return [tensor.tolist() for each in found for tensor in each]


def changes_in_place(_: Path) -> Any:
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    before, again = of_torch.times_changed(tensor), of_torch.times_changed(tensor)
    tensor[1] = 1
    return before == again, before == of_torch.times_changed(tensor)


def autocast(_: Path) -> Any:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with of_torch.outside_autocast("cpu"):
        outside = layer(x).dtype
    with torch.autocast("cpu", torch.bfloat16), of_torch.outside_autocast("cpu"):
        return outside, layer(x).dtype


def process_group(folder: Path) -> Any:
    store = distributed.FileStore(str(folder / f"store-{len(list(folder.iterdir()))}"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with of_torch.without_process_group():
            inside = distributed.is_initialized()
        return inside, distributed.is_initialized(), distributed.get_world_size()
    finally:
        distributed.destroy_process_group()


def fused_steps(_: Path) -> Any:
    parameters = list(nn.Linear(1, 1).parameters())
    found = [Adam(parameters, fused=fused) for fused in (True, False)]
    return [of_torch.unscales_in_step(one) for one in found]


def overflows(_: Path) -> Any:
    found = []
    for factor in (1.0, float("inf")):
        layer = nn.Linear(1, 1)
        optimizer, scaler = SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        scaler.scale(layer(torch.ones(1, 1)).sum() * factor).backward()
        scaler.unscale_(optimizer)
        found.append(of_torch.overflowed(scaler, optimizer))
    return found


def schedules_of_schedules(_: Path) -> Any:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    parts = [StepLR(optimizer, size) for size in (1, 2, 3)]
    chains = (SequentialLR(optimizer, parts, milestones=[3, 5]), ChainedScheduler(parts, optimizer), parts[0])
    return [[parts.index(part) for part in of_torch.chained_schedules(one)] for one in chains]


def last_rates(_: Path) -> Any:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    schedule = StepLR(optimizer, 1)
    of_torch.update_last_rates(schedule)
    optimizer.step()
    schedule.step()
    return schedule.get_last_lr()


def workers(_: Path) -> Any:
    before = set(multiprocessing.active_children())
    loader = DataLoader([1, 2, 3], num_workers=1, persistent_workers=True)
    read = [int(number) for number in loader]
    of_torch.stop_workers(loader)
    del loader
    gc.collect()
    return read, set(multiprocessing.active_children()) - before


def network() -> nn.Module:
    found = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False)))
    found[2][1].weight = found[0].weight  # found once, under its first name
    found.register_buffer("kept", torch.zeros(2), persistent=False)
    found[1].register_buffer("own", torch.ones(1), persistent=False)
    return found


def parts(_: Path) -> Any:
    module = network()
    names = {id(part): name for name, part in module.named_modules()}
    children = [{name: names[id(child)] for name, child in of_torch.children_of(part).items()} for part in module.modules()]
    found = of_torch.parts_of(module)
    assert all(names[id(part)] == name for name, part in found.items())
    return dict.fromkeys(found), children


def tensors_of_modules(_: Path) -> Any:
    module = network()
    names = {id(one): name for name, one in (*module.named_parameters(), *module.named_buffers())}
    buffers, unsaved = (
        [[names[id(one)] for one in find(part).values()] for part in module.modules()]
        for find in (of_torch.buffers_of, of_torch.unsaved_buffers)
    )
    parameters = of_torch.parameters_of(module)
    assert all(names[id(one)] == name for name, one in parameters.items())
    return list(parameters), buffers, unsaved


def batch_norms(_: Path) -> Any:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d, nn.LayerNorm)
    return [of_torch.is_batch_norm(part) for part in (*(kind(2) for kind in kinds), nn.LazyBatchNorm2d(), network()[1])]


def hooks(_: Path) -> Any:
    """The hooks that are found, and that removing them from the registers removes them."""
    module, frozen, seen = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), []
    for register in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        getattr(module, f"register_{register}")(lambda *_, name=register: seen.append(name))
    for parameter in (module.weight, frozen):
        parameter.register_hook(lambda _: seen.append("gradient"))
    module.bias.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    frozen.requires_grad_(False)
    found = [of_torch.hooks_of(owner) for owner in (module, module.weight, module.bias, frozen)]
    counts = [[len(register or {}) for register in registers] for registers in found]
    x = torch.ones(1, 1, requires_grad=True)
    module(x).backward()
    for register in (one for registers in found for one in registers if one is not None):
        register.clear()
    called = list(seen)
    module(x).backward()
    return counts, sorted(called), len(called) == len(seen), frozen.requires_grad


Point = namedtuple("Point", "x y")


def trees(_: Path) -> Any:
    tree = {
        "a": [1, (2, Point(3, None))],
        "b": OrderedDict(c=deque([4], maxlen=2)),
        "d": defaultdict(list, e=[5, []]),
        "f": "g",
    }
    leaves, spec = of_torch.tree_flatten(tree)
    other = of_torch.tree_flatten({"a": [1, 2]})[1]
    again = of_torch.tree_unflatten([str(leaf) for leaf in leaves], spec)
    doubled = of_torch.tree_map(lambda leaf: [leaf], tree)
    kinds = [type(one) for one in (again["a"][1][1], again["b"], again["b"]["c"], again["d"], again["b"]["c"].maxlen)]
    return leaves, again, doubled, kinds, spec == of_torch.tree_flatten(tree)[1], spec == other, str(spec) == str(other)


def _note(found: list[Any], *_: Any) -> None:
    found.append("seen")


def light_training(_: Path) -> Any:
    """Weights after light steps, what a hook saw, and whether hooks are found."""
    torch.manual_seed(0)
    found: list[Any] = []
    for watched in (False, True):
        layer = nn.Linear(3, 1)
        optimizer = SGD(layer.parameters(), lr=0.1)
        if watched:
            optimizer.register_step_post_hook(partial(_note, found))
        light_steps.step_lightly(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            light_steps.backward_lightly(layer(torch.ones(2, 3)).square().mean())
            optimizer.step()
        found += [layer.weight.tolist(), light_steps.has_step_hooks(optimizer)]
    return found
