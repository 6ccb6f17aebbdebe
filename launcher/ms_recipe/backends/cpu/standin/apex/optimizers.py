"""``apex.optimizers``: Adam and SGD with apex's names, state and decoupled weight decay, in plain torch."""

from __future__ import annotations

import torch


class FusedAdam(torch.optim.Optimizer):
    """apex's FusedAdam in its default AdamW mode.

    As in apex the step count is the group's (``group["step"]``), not each parameter's: Megatron's distributed optimizer
    saves and restores it there, and a resumed run counts on from it.
    """

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0, amsgrad=False, set_grad_none=True, **kwargs):
        refused = [*({"bias_correction": not bias_correction, "adam_w_mode": not adam_w_mode, "amsgrad": amsgrad}.items()),
                   *((name, True) for name in sorted(kwargs))]
        if any(wrong for _, wrong in refused):
            raise NotImplementedError(f"FusedAdam has no CPU form for {', '.join(name for name, wrong in refused if wrong)}")
        super().__init__(params, {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None, **_):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            correct1, correct2 = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                grad, m, v = p.grad.to(p.dtype), state["exp_avg"], state["exp_avg_sq"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                m.lerp_(grad, 1 - beta1)
                v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                p.addcdiv_(m, (v / correct2).sqrt_().add_(group["eps"]), value=-group["lr"] / correct1)
        return loss


class FusedSGD(torch.optim.SGD):
    """apex's FusedSGD."""

    def __init__(self, params, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, **kwargs):
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                         nesterov=nesterov)
