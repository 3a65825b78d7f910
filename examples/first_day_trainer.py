"""The first day of a user of the Hugging Face Trainer: one more callback, a finding, its layer, the mended training.

``pip install 'sonde[transformers]'``. The mistake is planted: a block in the middle was frozen. The model learns to count.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import sonde
from sonde.integrations import TransformersCallback


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    first, step = torch.randint(0, 50, (count, 1)), torch.randint(1, 5, (count, 1))
    tokens = (first + step * torch.arange(16)) % 50
    return [{"input_ids": each, "labels": each} for each in tokens]


def main() -> None:
    config = LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)
    settings = TrainingArguments(
        "out",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    for name in ("first", "mended"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        if name == "first":
            model.model.layers[1].requires_grad_(False)  # the mistake
        callback = TransformersCallback(every=2)
        Trainer(model, settings, train_dataset=sequences(160), callbacks=[callback]).train()
        run = callback.inspector.run
        steps, losses = run.scalar("loss")
        print(f"{name}: loss {losses[0]:.2f} at step {steps[0]}, {losses[-1]:.2f} at step {steps[-1]}")
        found = sonde.check(run)
        print(f"{name}: {found.verdict}", *(f"{each.rule} ({each.site}): {each.message}" for each in found.findings))


if __name__ == "__main__":
    main()
