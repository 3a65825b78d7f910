"""Say which symptom each rule speaks of: of sonde, of smdebug and of TheDeepChecker."""

from __future__ import annotations

from sonde import rules

RULE_SYMPTOMS = {
    "nonfinite": "not finite",
    "dead": "dead",
    "all_zero": "dead",
    "constant": "constant",
    "saturated": "saturated",
    "gradient_zero": "zero gradient",
    "gradient_large": "exploding",
    "gradient_small": "vanishing",
    "update_large": "large steps",
    "update_small": "small steps",
    "output_growth": "growth",
    "output_large": "scale",
    "weight_growth": "growth",
    "gradient_growth": "exploding",
    "spike": "spike",
    "no_training_forward": "mode",
    "gradient_vanishing": "vanishing",
    "gradient_exploding": "exploding",
    "output_small": "scale",
    "weight_shrinking": "growth",
    "flat": "saturated",
    "constant_weight": "constant",
    "dropped": "dead",
    "overflow_near": "range",
    "underflow": "range",
    "loss_rising": "loss",
    "loss_unbounded": "loss",
    "loss_stuck": "loss",
    "overfitting": "overfitting",
    "update_huge": "large steps",
    "update_lost": "rounding",
    "unmoved": "small steps",
    "unreached": "zero gradient",
    "frozen": "small steps",
    "frozen_raw": "small steps",
    "weight_large": "scale",
    "weight_small": "vanishing",
    "gate_shut": "saturated",
    "attention_large": "saturated",
    "one_index": "constant",
    "gradient_kept": "exploding",
    "gradient_cleared": "zero gradient",
    "input_large": "spike",
    "rank_collapse": "rank",
    "begins_large": "scale",
    "overwritten": "growth",
    "input_same": "constant",
    "rate_negative": "loss",
    "rate_grown": "large steps",
    "momentum_large": "large steps",
    "decay_large": "growth",
    "gradient_alone": "exploding",
    "target_large": "scale",
    "loss_summed": "large steps",
    "norm_setting": "scale",
    "optimizer_renewed": "small steps",
    "held_twice": "large steps",
    "eps_large": "small steps",
    "eps_lost": "range",
    "betas_odd": "large steps",
    "rate_small": "small steps",
    "softmax_twice": "loss",
    "bounded": "saturated",
    "labels_several": "loss",
    "labels_alike": "loss",
    "target_trained": "constant",
    "padding_counted": "loss",
    "padding_alone": "loss",
    "future_seen": "loss",
    "target_shifted": "loss",
    "outputs_alike": "constant",
    "residual_missing": "constant",
    "input_unused": "constant",
    "target_beyond": "saturated",
    "weight_of_ones": "loss",
    "few_indices": "constant",
    "running_off": "loss",
    "norm_starved": "constant",
    "target_own": "small steps",
    "terms_uneven": "loss",
    "target_of_another": "loss",
    "views_same": "loss",
    "pushed_one_way": "loss",
    "errors_cancel": "loss",
    "metric_falls": "loss",
    "penalty_alone": "constant",
    "sentinel": "spike",
    "class_regressed": "loss",
    "label_seen": "loss",
    "generator_misled": "loss",
    "all_linear": "loss",
    "weight_of_many": "loss",
}


def symptom_of(rule: str) -> str:
    """Return the symptom of a rule of sonde.

    Raises:
        KeyError: the rule is new, and the table above does not have it yet.
    """
    if rule not in RULE_SYMPTOMS:
        raise KeyError(f"benchmarks/health/symptoms.py does not say which symptom the rule {rule!r} speaks of")
    return RULE_SYMPTOMS[rule]


def unknown_rules() -> list[str]:
    """Return the rules that a watched training applies and that have no symptom here; others judge tables, or before a training."""
    return sorted({name for name, rule in rules.RULES.items() if rule.needs} - RULE_SYMPTOMS.keys())
