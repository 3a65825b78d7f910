"""Train a small language model with the Trainer of transformers, and record it with one more callback.

``pip install 'sonde[transformers]'``. The model learns to count: each token is the one before, plus a step of its sequence.
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
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    settings = TrainingArguments(
        "out",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    callback = TransformersCallback(every=5)
    trainer = Trainer(
        LlamaForCausalLM(config), settings, train_dataset=sequences(640), eval_dataset=sequences(64), callbacks=[callback]
    )
    trainer.train()

    if not trainer.is_world_process_zero():
        return  # rank 0 ends the run that all ranks write
    run = sonde.open_run(callback.inspector.path)
    for name in ("loss", "val_loss", "grad_norm", "learning_rate"):
        steps, values = run.scalar(name)
        print(f"{name}: {values[0]:.3g} at step {steps[0]}, {values[-1]:.3g} at step {steps[-1]}")


if __name__ == "__main__":
    main()
