"""Learning rate over samples: warm-up, then decay."""

from __future__ import annotations

import math


class Scheduler:
    """lr(n) for n consumed samples; the weight decay stays as it is."""

    def __init__(self, optimizer, args) -> None:
        self.optimizer = optimizer
        self.max_lr, self.min_lr = args.lr, args.min_lr or 0.0
        self.style = args.lr_decay_style
        iterations = args.lr_decay_iters or args.train_iters
        self.decay = iterations * args.global_batch_size
        if args.lr_warmup_fraction is not None:
            self.warmup = args.lr_warmup_fraction * self.decay
        else:
            self.warmup = (args.lr_warmup_iters or 0) * args.global_batch_size
        assert self.warmup < self.decay, "lr warm-up is not shorter than the decay"
        self.weight_decay = args.weight_decay
        self.steps = 0
        self.step(0)

    def lr(self) -> float:
        if self.warmup > 0 and self.steps <= self.warmup:
            return self.max_lr * self.steps / self.warmup
        if self.style == "constant":
            return self.max_lr
        if self.steps > self.decay:
            return self.min_lr
        if self.style == "inverse-square-root":
            warmup, now = max(self.warmup, 1), max(self.steps, 1)
            return max(self.min_lr, self.max_lr * warmup**0.5 / now**0.5)
        done = (self.steps - self.warmup) / (self.decay - self.warmup)
        if self.style == "linear":
            left = 1.0 - done
        elif self.style == "cosine":
            left = 0.5 * (math.cos(math.pi * done) + 1.0)
        else:
            raise NotImplementedError(f"the stub upstream does not implement --lr-decay-style {self.style}")
        return self.min_lr + left * (self.max_lr - self.min_lr)

    def step(self, increment: int) -> None:
        self.steps += increment
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr() * group.get("lr_mult", 1.0)
            group["weight_decay"] = self.weight_decay * group.get("wd_mult", 1.0)

    def state_dict(self) -> dict:
        return {
            "max_lr": self.max_lr,
            "min_lr": self.min_lr,
            "lr_warmup_steps": self.warmup,
            "lr_decay_steps": self.decay,
            "lr_decay_style": self.style,
            "num_steps": self.steps,
        }

    def load_state_dict(self, state: dict) -> None:
        for key, mine in (("max_lr", self.max_lr), ("min_lr", self.min_lr), ("lr_warmup_steps", self.warmup),
                          ("lr_decay_steps", self.decay), ("lr_decay_style", self.style)):  # fmt: skip
            if state[key] != mine:
                raise AssertionError(f"OptimizerParamScheduler: class input value {mine} and checkpoint value {state[key]} for {key} do not match")
        self.steps = 0
        self.step(state["num_steps"])
