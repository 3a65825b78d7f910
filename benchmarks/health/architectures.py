"""Take the first steps of a hundred architectures of transformers, torchvision and timm: each is healthy, and any finding is false.

``python -m benchmarks.health.architectures`` needs the three libraries, and leaves out the models of one that is not installed.
Weights are random; images and tokens too: four steps of AdamW at its default learning rate are what a user looks at first.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks.health import page
from benchmarks.health.scoring import table
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from sonde.inspector import watch

CLASSES, STEPS = 10, 4


def _names() -> dict[str, list[str]]:
    """Return the names of architectures.txt by their first word."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            library, *names = line.split()
            found.setdefault(library, []).extend(names)
    return found


NAMES = _names()

_SIZES = """
32 hidden_size d_model n_embd dim embedding_size emb_dim embed_dim attention_hidden_size
3 num_hidden_layers n_layer n_layers num_layers num_decoder_layers num_channels
2 encoder_layers decoder_layers num_key_value_heads num_local_experts eos_token_id
4 num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads rotary_dim
8 head_dim d_kv d_head patch_size
64 intermediate_size d_ff d_inner n_inner hidden_dim ffn_dim encoder_ffn_dim decoder_ffn_dim
64 max_position_embeddings n_positions max_source_positions max_seq_len n_ctx image_size
120 vocab_size
0 pad_token_id
1 bos_token_id decoder_start_token_id
"""
SIZES = {name: int(line.split()[0]) for line in _SIZES.split("\n") if line for name in line.split()[1:]}
"""What a configuration is cut down to, where it has an attribute of the name."""
MASKED = set(
    """albert bert big_bird camembert convbert deberta deberta-v2 distilbert electra ernie fnet funnel longformer mpnet
    nystromformer rembert roberta roformer squeezebert xlm-roberta""".split()  # noqa: SIM905  # shorter so
)
"""Encoders, which learn to fill in tokens."""
AS_IT_IS = {"convnext", "convnextv2", "focalnet", "mobilevit", "poolformer", "pvt", "regnet", "resnet", "segformer", "swin"}
"""Pyramids, whose sizes are lists that must fit one another: these are taken as they are."""


@dataclass
class FirstSteps:
    """What was found in the first steps of an architecture; *error* is why it could not be trained."""

    library: str
    name: str
    findings: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0


def of_transformers(name: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return a model of a type of configuration, cut small, and what computes its loss."""
    import transformers

    config: Any = transformers.AutoConfig.for_model(name)
    is_image = name in NAMES["images"]
    if name not in AS_IT_IS:
        for key, value in SIZES.items():
            if getattr(config, key, None) is not None or key == "pad_token_id":
                try:
                    setattr(config, key, value)
                except (AttributeError, NotImplementedError, ValueError):
                    continue
        if name == "gpt_neo":
            config.num_layers, config.attention_types = 2, [[["global", "local"], 1]]
            config.attention_layers = ["global", "local"]
        if name == "longformer":
            config.attention_window = [8] * 3
        with contextlib.suppress(AttributeError):  # some configurations compute it
            if getattr(config, "layer_types", None):
                config.layer_types = list(config.layer_types)[: config.num_hidden_layers]
    config.num_labels = CLASSES
    if is_image:
        model = transformers.AutoModelForImageClassification.from_config(config)
        size = 128 if "mobilevit" in name else 64
        x, y = torch.randn(4, 3, size, size), torch.randint(CLASSES, (4,))
        return model, lambda held: functional.cross_entropy(held(pixel_values=x).logits, y)
    sequences = {"bart", "mbart", "pegasus", "t5"}
    kind = "MaskedLM" if name in MASKED else "Seq2SeqLM" if name in sequences else "CausalLM"
    if kind == "Seq2SeqLM":
        config.decoder_start_token_id = 1
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    tokens = torch.randint(3, 110, (4, 32))
    return model, lambda held: held(input_ids=tokens, labels=tokens).loss


def of_images(library: str, name: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return a model of torchvision or timm with 10 classes, and what computes its loss."""
    size = 64
    if library == "torchvision":
        import torchvision

        settings: dict[str, Any] = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        size = 224 if name in ("maxvit_t", "vit_b_32") else 96 if name == "alexnet" else size
        model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **settings)
    else:
        import timm

        model = timm.create_model(name, num_classes=CLASSES)
        size = max(size, model.default_cfg["input_size"][-1] if model.default_cfg.get("fixed_input_size") else size)
        if name.startswith("mobilevit"):
            size = 128  # attention over one token has no gradient
        if name.startswith(("gcvit", "levit", "efficientformer", "coat")):
            size = model.default_cfg["input_size"][-1]
    x, y = torch.randn(4, 3, size, size), torch.randint(CLASSES, (4,))
    return model, lambda held: functional.cross_entropy(held(x), y)


def first_steps(library: str, name: str) -> FirstSteps:
    """Take four steps of AdamW under ``watch``, all of them logged."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = FirstSteps(library, name)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, loss_of = of_transformers(name) if library == "transformers" else of_images(library, name)
            model.train()
            optimizer = AdamW(model.parameters())
            with watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    loss = loss_of(model)
                    loss.backward()
                    optimizer.step()
                    inspector.push_loss(loss.detach(), train=True)
            said = [each for each in inspector.findings if each.severity != "note"]
        found.findings = [f"{each.rule}: {each.message}" for each in said]
        found.rules = [each.rule for each in said]
    except Exception:  # an architecture that this version of a library cannot build is listed, and the others go on
        found.error = traceback.format_exc().strip().splitlines()[-1]
    found.seconds = time.perf_counter() - start
    return found


def installed() -> dict[str, list[str]]:
    """Return the architectures of each library that is installed."""
    known = {"transformers": [*NAMES["text"], *NAMES["images"]], "torchvision": NAMES["torchvision"], "timm": NAMES["timm"]}
    return {library: names for library, names in known.items() if find_spec(library) is not None}


def versions() -> str:
    """Return the versions of torch and of the three libraries."""
    found = []
    for name in ("torch", "transformers", "torchvision", "timm"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def report(found: Iterable[FirstSteps]) -> str:
    """Return the table of libraries, the counts by rule, and each architecture with a finding."""
    found = list(found)
    rows = []
    for library in dict.fromkeys(each.library for each in found):
        own = [each for each in found if each.library == library]
        ran = [each for each in own if not each.error]
        rows.append([library, len(ran), sum(bool(each.findings) for each in ran), len(own) - len(ran)])
    ran = [each for each in found if not each.error]
    rows.append(["all", len(ran), sum(bool(each.findings) for each in ran), len(found) - len(ran)])
    counts = Counter(rule for each in ran for rule in set(each.rules))
    lines = [table(["library", "architectures", "with a finding", "could not be built"], rows)]
    lines.append("\nBy rule: " + (", ".join(f"`{rule}` in {count}" for rule, count in counts.most_common()) or "none"))
    lines += [f"- {each.library} {each.name}: " + "; ".join(each.findings) for each in ran if each.findings]
    lines += [f"- not built: {each.library} {each.name}: {each.error}" for each in found if each.error]
    return "\n".join(lines)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health.architectures", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="architectures that match, as 'timm/.*vit'")
    parser.add_argument("-j", "--processes", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is found to FILE, a line of JSON each")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into this page, as docs/rules-measured.md")
    options = parser.parse_args()
    held = installed()
    for library in {"transformers", "torchvision", "timm"} - held.keys():
        print(f"{library} is not installed: its architectures are left out (pip install {library})")
    names = [(library, name) for library, known in held.items() for name in known if re.search(options.only, f"{library}/{name}")]
    if not names:
        print(f"no architecture matches {options.only!r}, or no library is installed")
        return 2
    found: list[FirstSteps] = []
    if options.json:
        options.json.write_text("", encoding="utf-8")
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(first_steps, *zip(*names, strict=True)):
            found.append(each)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(each)) + "\n")
    text = f"""Four steps of AdamW at its default learning rate, each logged, from random weights on random images or tokens, with
`python -m benchmarks.health.architectures` ({datetime.datetime.now(datetime.UTC).date()}; {versions()}).

{report(found)}"""
    print(text)
    if options.write:
        page.write(options.write, text, architectures=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
