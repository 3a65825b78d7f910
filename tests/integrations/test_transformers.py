"""The callback for the Trainer of transformers, in real trainings of the real package."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may load anything

import transformers
from transformers import EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import sonde
from sonde.errors import ArgumentError
from sonde.inspector import Inspector
from sonde.integrations import TransformersCallback

transformers.utils.logging.set_verbosity_error()

TOKENS = torch.randint(0, 50, (24, 8), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": tokens, "labels": tokens} for tokens in TOKENS]


def language_model() -> Any:
    torch.manual_seed(0)
    small = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**small, num_key_value_heads=2, max_position_embeddings=32))


def arguments(folder: Path, **given: Any) -> Any:
    small = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 3, "learning_rate": 1e-2}
    quiet = {"report_to": "none", "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}
    return TrainingArguments(**{"output_dir": str(folder / "out")} | small | quiet | given)


def trained(folder: Path, *callbacks: Any, kind: Any = Trainer, data: Any = DATA, resume: Any = None, **given: Any) -> Any:
    model = language_model()
    evaluated = DATA[:8] if "eval_strategy" in given else None
    trainer = kind(model, arguments(folder, **given), train_dataset=data, eval_dataset=evaluated, callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def callback(**given: Any) -> Any:
    return TransformersCallback(**{"every": 2, "to": "memory", "verbose": False} | given)


def rows(inspector: Inspector) -> list[Any]:
    return inspector.run.sql("SELECT * FROM moments ORDER BY ALL").fetchall()


def scalars(inspector: Inspector, name: str) -> list[tuple[int, int, float]]:
    return inspector.run.sql(f"SELECT epoch, step, value FROM scalars WHERE name = '{name}' ORDER BY step").fetchall()


class Ordered(Trainer):  # type: ignore[misc]
    """Takes the data in order, so that a loop by hand can do the same."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(DATA)  # type: ignore[arg-type]


class Scaled(Ordered):
    """A loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss * 3, outputs) if return_outputs else outputs.loss * 3


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(Ordered, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}, id="accumulation and clipping"),
        pytest.param(Scaled, {"gradient_accumulation_steps": 2}, id="a loss of its own", marks=pytest.mark.slow),
        pytest.param(Ordered, {"bf16": True}, id="bfloat16", marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_the_same_loop_by_hand(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    """With evaluation between the steps, and the same bits in the parameters as without the callback."""
    recorded = callback()
    observed = trained(tmp_path, recorded, kind=kind, eval_strategy="steps", eval_steps=2, **settings).model
    bare = trained(tmp_path, kind=kind, eval_strategy="steps", eval_steps=2, **settings).model
    assert all(torch.equal(one, other) for one, other in zip(observed.parameters(), bare.parameters(), strict=True))

    model, accumulate = language_model(), settings.get("gradient_accumulation_steps", 1)
    parts = 1 if kind is Scaled else accumulate  # the trainer leaves it to the model's own loss to divide
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    total = 2 * 6 // accumulate
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    with sonde.watch(model, optimizer, every=2, to="memory", verbose=False) as inspector:
        losses: list[float] = []
        for index in range(12):
            if index == 6:
                inspector.tick_epoch()  # the trainer has ended an epoch, too
            tokens = TOKENS.split(4)[index % 6]
            with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in settings):
                loss = model(input_ids=tokens, labels=tokens).loss * (3 if kind is Scaled else 1)
            losses.append(float(loss.detach()) / parts)
            (loss / parts).backward()
            if (index + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), settings.get("max_grad_norm", 1.0))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                inspector.push_loss(sum(losses[-accumulate:]), train=True)
    # with bfloat16 the trainer converts what the model returns, so that no gradient reaches the converted logits
    same = "SELECT site, call, step, epoch, count FROM moments WHERE layer <> '(root)' AND layer <> '' ORDER BY ALL"
    assert recorded.inspector.run.sql(same).fetchall() == inspector.run.sql(same).fetchall()
    for name in ("grad_norm", "grad_norm_raw", "loss"):  # the trainer divides the loss at another place: rounding of float32
        found, expected = ([value for _, _, value in scalars(each, name)] for each in (recorded.inspector, inspector))
        assert found == pytest.approx(expected, rel=2e-2 if "bf16" in settings else 1e-4)


def test_what_the_trainer_logs_is_in_the_run(tmp_path: Path) -> None:
    """Under its names, at its steps; the loss of evaluation where rules look for it; sonde's own names are not taken."""
    recorded = callback()
    trainer = trained(tmp_path, recorded, eval_strategy="epoch")
    logged = trainer.state.log_history
    inspector = recorded.inspector
    for name, ours in (("loss", "trainer/loss"), ("grad_norm", "trainer/grad_norm"), ("learning_rate", "learning_rate")):
        expected = [(each["step"] - 1, each[name]) for each in logged if name in each]
        assert [(step, value) for _, step, value in scalars(inspector, ours)] == expected
    evaluated = [(each["step"] - 1, each["eval_loss"]) for each in logged if "eval_loss" in each]
    assert [(step, value) for _, step, value in scalars(inspector, "val_loss")] == evaluated
    assert [(epoch, step) for epoch, step, _ in scalars(inspector, "eval_loss")] == [(0, 5), (1, 11)]
    found = inspector.run.sql("SELECT DISTINCT epoch, step FROM moments ORDER BY ALL").fetchall()
    assert found == [(step // 6, step) for step in range(0, 12, 2)]
    config = inspector.run.config
    assert (config["learning_rate"], config["num_train_epochs"]) == (1e-2, 2)
    assert "hub_token" not in config
    assert "training_step" not in vars(trainer)


@pytest.mark.slow
def test_a_training_from_a_checkpoint_goes_on_with_its_run(tmp_path: Path) -> None:
    """Without a place of its own the second callback finds the run in the checkpoint; steps and epochs go on."""
    first = callback(to=tmp_path / "run")
    trained(tmp_path, first, save_strategy="steps", save_steps=8)
    saved = tmp_path / "out" / "checkpoint-8"
    state = json.loads((saved / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["sonde"]["attributes"] == {"run": str(tmp_path / "run"), "step": 8, "epoch": 1}
    second = TransformersCallback(every=2, verbose=False)
    trained(tmp_path, second, num_train_epochs=3, resume=str(saved))
    run = second.inspector.run
    assert run.path == tmp_path / "run"
    assert [attempt.first_step for attempt in run.description.attempts] == [0, 8]
    assert run.sql("SELECT DISTINCT epoch, step FROM moments ORDER BY ALL").fetchall() == [
        (step // 6, step) for step in range(0, 18, 2)
    ]


class Broken(list[Any]):
    """Data that raise *error* when the 20th sample is read, as the sixth batch is made."""

    error: BaseException = RuntimeError("a broken file")

    def __getitem__(self, index: Any) -> Any:
        if index == 20:
            raise self.error
        return super().__getitem__(index)


class Interrupted(Broken):
    error = KeyboardInterrupt()


@pytest.mark.parametrize("data", [Broken(DATA), Interrupted(DATA)], ids=["an error", "an interrupt"])
def test_an_error_ends_the_run(data: Any, tmp_path: Path) -> None:
    """Wherever in ``train`` it is raised: the rows up to there are kept, and the model and the trainer are as before."""
    recorded = callback(every=1)
    model = language_model()
    trainer = Ordered(model, arguments(tmp_path), train_dataset=data, callbacks=[recorded])
    with pytest.raises(type(data.error)):
        trainer.train()
    assert not recorded.inspector.attached
    run = recorded.inspector.run
    assert run.state == ("interrupted" if isinstance(data.error, KeyboardInterrupt) else "failed")
    assert (run.end.error, run.end.message, run.end.step) == (type(data.error).__name__, str(data.error), 4)
    assert recorded.inspector.run.scalar("grad_norm")[0].tolist() == [0, 1, 2, 3]  # one batch is fetched ahead
    assert "training_step" not in vars(trainer)


@pytest.mark.slow
def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    """At the step at which the trainer stops."""
    recorded = callback()
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    stops = EarlyStoppingCallback(early_stopping_patience=1)
    trained(tmp_path, recorded, stops, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=9, **best)
    assert not recorded.inspector.attached
    assert recorded.inspector.run.scalar("grad_norm")[0].tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.slow
def test_a_callback_that_is_added_later(tmp_path: Path) -> None:
    """With ``add_callback``; each call of ``train`` is a run of its own."""
    recorded = callback(every=1)
    trainer = Trainer(language_model(), arguments(tmp_path), train_dataset=DATA)
    trainer.add_callback(recorded)
    trainer.train()
    first = recorded.inspector
    trainer.train()
    assert recorded.inspector is not first
    for inspector in (first, recorded.inspector):
        assert [step for _, step, _ in scalars(inspector, "loss")] == list(range(12))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_that_the_trainer_compiles(tmp_path: Path) -> None:
    """``torch_compile=True``: the rows are those of the eager training, up to rounding."""
    eager, compiled = callback(), callback()
    trained(tmp_path, eager, kind=Ordered)
    trained(tmp_path, compiled, kind=Ordered, torch_compile=True, torch_compile_backend="aot_eager")
    same = "SELECT site, call, step, count FROM moments WHERE port IN ('output', 'grad', 'update') AND layer <> '' ORDER BY ALL"
    assert compiled.inspector.run.sql(same).fetchall() == eager.inspector.run.sql(same).fetchall()
    found, expected = ([value for _, _, value in scalars(each.inspector, "loss")] for each in (compiled, eager))
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_gradient_checkpointing_has_the_same_rows(tmp_path: Path) -> None:
    """What a checkpoint repeats is not counted twice."""
    plain, checkpointed = callback(), callback()
    trained(tmp_path, plain, kind=Ordered)
    trained(tmp_path, checkpointed, kind=Ordered, activation_checkpointing=True)
    same = "SELECT site, call, step, count FROM moments ORDER BY ALL"
    assert checkpointed.inspector.run.sql(same).fetchall() == plain.inspector.run.sql(same).fetchall()


class OutOfMemory(Ordered):
    """Fails once, in the third step."""

    steps = 0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(*args, **kwargs)


@pytest.mark.slow
def test_a_training_that_begins_again_with_a_smaller_batch_is_one_run(tmp_path: Path) -> None:
    """With ``auto_find_batch_size`` the trainer begins again at step 0: the rows of the failed attempt are superseded."""
    recorded = callback(to=tmp_path / "run")
    trainer = trained(tmp_path, recorded, kind=OutOfMemory, auto_find_batch_size=True)
    run = recorded.inspector.run
    assert [attempt.first_step for attempt in run.description.attempts] == [0, 0]
    assert run.scalar("grad_norm")[0].tolist() == list(range(0, trainer.state.global_step, 2))
    assert len(scalars(recorded.inspector, "loss")) == len(set(scalars(recorded.inspector, "loss")))


def test_arguments_are_those_of_watch_and_a_second_callback_is_an_error(tmp_path: Path) -> None:
    """Wrong arguments before any training, two callbacks as it begins."""
    with pytest.raises(ArgumentError, match=r"takes the arguments of sonde.watch. Nearest: every"):
        TransformersCallback(evry=3)
    with pytest.raises(ArgumentError, match="two TransformersCallbacks"):
        trained(tmp_path, callback(), callback())


def test_alerts_are_passed_on_while_the_trainer_trains(tmp_path: Path) -> None:
    """``on_alert=`` is an argument of ``watch``, as all others."""
    told: list[Any] = []
    trained(tmp_path, callback(every=1, on_alert=told.append), kind=Ordered, learning_rate=10.0)
    assert "update_huge" in {finding.rule for finding in told}
