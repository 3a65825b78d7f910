"""Train a small residual network on handwritten digits twice, once as it should be and once with one wrong line, and look inside.

The wrong line sets a bias of -4.6, right for the last layer of a detector, in the middle of the network. The loss goes
down all the same; the fault shows in the run that ``sonde.watch`` records, in its table and in its pictures.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.errors import MissingExtraError
from sonde.site import Site
from sonde.words import number_text, percent

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from sonde.inspector import Inspector

EXAMPLES = """
sonde demo                  two runs in the folder "runs", in half a minute
sonde demo --epochs 2 -o /tmp/runs
"""

BLOCKS = 4
WRONG = 2  # the block that the wrong line hits
PRIOR_BIAS = -4.6
EVERY = 5  # steps, of 23 in an epoch
_WHOLE = r"^\(root\)$|^blocks\.\d+$"  # containers
_SPARK = "▁▂▃▄▅▆▇█"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("--epochs", type=int, default=20, help="passes over the 1,437 training images (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs"), metavar="FOLDER", help="of the two runs (default: runs)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")


@dataclass
class Trained:
    """One training: its name, the loss at its end as the run recorded it, the accuracy on test images, and its inspector."""

    title: str
    loss: float
    accuracy: float
    inspector: Inspector


def run(options: argparse.Namespace) -> int:
    """Train both networks, print what a training loop shows, and then what the runs show."""
    from rich.console import Console

    from sonde.view import plots

    if options.epochs < 1:
        raise _usage(f"--epochs={options.epochs}: at least one epoch is needed")
    console = Console()
    digits = _digits()
    console.print("[bold]Two networks, 1,797 handwritten digits.[/] The second differs in one line:")
    console.print(
        f"    nn.init.constant_(model.blocks[{WRONG}].fc1.bias, {PRIOR_BIAS})\n", style="yellow", markup=False, highlight=False
    )
    trained = [
        _train(title, wrong, digits, options, console) for title, wrong in (("as intended", False), ("with that line", True))
    ]
    console.print("\n[bold]What the training loop shows[/]")
    for one in trained:
        console.print(f"  {one.title:<15} loss {number_text(one.loss)}   test accuracy {percent(one.accuracy, 1)}", highlight=False)
    _print_zeros(trained, console)
    console.print("\n[bold]The layers of the second[/]: [cyan]sonde.view.plots.table[/] of its run\n")
    console.print(plots.table(trained[1].inspector.run, exclude=_WHOLE))
    _print_finding(trained[1], console)
    _print_places(trained, console)
    return 0


def _usage(text: str) -> Exception:
    from sonde.errors import ArgumentError

    return ArgumentError(text)


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    import torch

    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise MissingExtraError.of("sonde demo", "scikit-learn", "demo") from None
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.2, random_state=0, stratify=labels)
    x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    y_train, y_test = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return x_train, x_test, y_train, y_test


def _network(*, wrong: bool) -> nn.Module:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.fc1 = nn.Linear(width, 2 * width)
            self.act = nn.ReLU()
            self.fc2 = nn.Linear(2 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            branch: Tensor = self.fc2(self.act(self.fc1(self.norm(x))))
            return x + branch

    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(64, 64)
            self.blocks = nn.Sequential(*(Block(64) for _ in range(BLOCKS)))
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.blocks(self.stem(x)))
            return logits

    model = Digits()
    if wrong:
        nn.init.constant_(model.get_submodule(f"blocks.{WRONG}.fc1").bias, PRIOR_BIAS)  # type: ignore[arg-type]  # a parameter
    return model


def _train(title: str, wrong: bool, digits: tuple[Tensor, ...], options: argparse.Namespace, console: Console) -> Trained:
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from torch.nn.functional import cross_entropy

    from sonde import lens
    from sonde.inspector import watch

    x_train, x_test, y_train, y_test = digits
    torch.manual_seed(options.seed)
    model = _network(wrong=wrong)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    columns = (
        TextColumn("  {task.description:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    lenses = (lens.moments(), lens.OutputActivation(dropout=False))
    inspector = watch(
        model, optimizer, every=EVERY, to=options.output / "demo", exists="unique", lenses=lenses, graph=x_train[:64], verbose=False
    )
    with inspector, Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=options.epochs)
        for _ in inspector.range(options.epochs):
            for chosen in torch.randperm(len(x_train)).split(64):
                loss = cross_entropy(model(x_train[chosen]), y_train[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
            progress.update(bar, advance=1)
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    return Trained(title, float(inspector.run.scalar("loss")[1][-1]), accuracy, inspector)


def _print_zeros(trained: list[Trained], console: Console) -> None:
    console.print("\n[bold]What sonde.watch has recorded[/]: the share of zeros behind each ReLU, step by step")
    for one in trained:
        console.print(f"  {one.title}", style="dim")
        run = one.inspector.run
        found = run.heatmap("zeros", "output", family="moments")
        sizes = run.heatmap("finite", "output", family="moments")
        for site, zeros, size in zip(found.sites, found.values, sizes.values, strict=True):
            if (name := Site.parse(site).name).endswith(".act"):
                shares = (zeros / size).tolist()
                style = "bold red" if shares[-1] > 0.99 else ""
                line = f"    {name:<14} {_spark(shares)}  {percent(shares[0]):>5} -> {percent(shares[-1])}"
                console.print(line, style=style, highlight=False)


def _spark(shares: list[float], width: int = 40) -> str:
    shown = [shares[place * len(shares) // width] for place in range(width)] if len(shares) > width else shares
    return "".join(_SPARK[min(int(share * len(_SPARK)), len(_SPARK) - 1)] for share in shown)


def _print_finding(wrong: Trained, console: Console) -> None:
    """Print the layer that died, and the numbers that show the death."""
    dead = [finding for finding in wrong.inspector.findings if finding.rule == "dead"]
    if not dead:
        console.print("\nNothing died this time; try another --seed.")
        return
    name = Site.parse(dead[0].site).name
    gradients = wrong.inspector.run.heatmap("norm", "grad", family="moments")
    ahead = gradients.values[gradients.sites.index(f"blocks.{WRONG}.fc1.weight:grad")]
    console.print(
        f"\n[bold red]{name} is dead:[/] {percent(dead[0].value)} of its units answer to no image of a batch. A bias of "
        f"{PRIOR_BIAS} pushes what reaches the ReLU below zero, and behind a zero there is no gradient by which the bias could "
        f"recover: that of blocks.{WRONG}.fc1.weight was exactly zero at {(ahead == 0).sum()} of {len(ahead)} logged steps. So "
        f"block {WRONG} adds a constant to its input, and its weights learn nothing: weight decay alone moves them. The skip "
        "connection carries the rest, which is why the loss says nothing.",
        highlight=False,
    )


def _print_places(trained: list[Trained], console: Console) -> None:
    """Print the folders of the runs, and the files of the pictures of the second run."""
    console.print("\n[bold]To look at[/]")
    for one in trained:
        console.print(f"  {one.title:<15} sonde show {one.inspector.path}", highlight=False)
    runs = Path(trained[1].inspector.path or ".").parent
    console.print(f"  {'both, live':<15} sonde ui {runs}", highlight=False)
    try:
        files = _pictures(trained[1].inspector)
    except MissingExtraError as missing:
        console.print(f"  no pictures: {missing}", style="dim", markup=False, highlight=False)
        return
    for title, file in files.items():
        console.print(f"  {title:<15} {file}", highlight=False)


def _pictures(inspector: Inspector) -> dict[str, Path]:
    """Draw two pictures into the folder of the run; by title, the files."""
    from sonde.view import plots

    run = inspector.run
    folder = Path(inspector.path or ".") / "pictures"
    pictures = {
        "gradients": plots.heatmap(run, "rms", "grad"),
        "dead units": plots.activation(run),
    }
    folder.mkdir(exist_ok=True)
    files = {title: folder / f"{title.replace(' ', '_')}.png" for title in pictures}
    for title, picture in pictures.items():
        picture.savefig(files[title])
    return files
