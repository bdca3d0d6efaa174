#!/usr/bin/python3
"""Trains the sample model on the output of prepare.py. Started again, it resumes.

Sparsity: the loss has a term lambda * density, where density is the Hoyer square
(sum a)^2 / (n * sum a^2) of a token's activations a = relu(gate), averaged over tokens
and blocks: an L1 penalty that shrinking all activations alike cannot cheat. Lambda is
steered so that the share of non-zero activations follows a falling target.
"""
import argparse
import dataclasses
import math
import os
import pathlib
import time

import numpy as np
import torch
from torch.nn import functional as F

from model import Config, Model
from prepare import BOS

SEED = 1
BATCH = 32
ADAM_RATE = 3e-3  # embedding and norms
MUON_RATE = 0.02  # all other matrices
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 100
DECAY_SHARE = 0.5  # of the steps, at the end: the rate falls linearly to 0
DENSITY_START, DENSITY_END = 0.5, 0.085
DENSITY_RAMP_SHARE = 0.6  # of the steps: then the density target stays at its end
LAMBDA_START, LAMBDA_GAIN = 1e-2, 0.05


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz iterations (Jordan et al., 2024)."""

    def __init__(self, parameters, lr, weight_decay, momentum=0.95):
        super().__init__(parameters, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(state["momentum"], group["momentum"])
                rows, columns = parameter.shape
                scale = max(1, rows / columns) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(orthogonalise(update), alpha=-group["lr"] * scale)


def orthogonalise(matrix):
    x = matrix.bfloat16()
    transposed = x.shape[0] > x.shape[1]
    if transposed:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if transposed else x).float()


class CrossEntropy(torch.autograd.Function):
    """F.cross_entropy of logits [row, vocab], in half the time or less in torch 1.13."""

    @staticmethod
    def forward(ctx, logits, targets):
        x = logits.to(torch.float32, copy=True)
        log_sum = x.logsumexp(-1, keepdim=True)
        loss = (log_sum - x.gather(1, targets[:, None])).mean()
        gradient = x.sub_(log_sum).exp_()
        gradient[torch.arange(len(targets)), targets] -= 1
        ctx.save_for_backward(gradient.div_(len(targets)).to(logits.dtype))
        return loss

    @staticmethod
    def backward(ctx, upstream):
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None


def random_windows(tokens, step, config):
    """Inputs and targets. Each window starts with BOS, as each prompt does."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    starts = torch.randint(len(tokens) - config.context_length, (BATCH, 1), generator=generator)
    targets = tokens[starts + torch.arange(config.context_length)]
    return F.pad(targets[:, :-1], (1, 0), value=BOS), targets


def hoyer_density(activations):
    densities = []
    for a in activations:
        a = a.float()
        densities.append((a.sum(-1) ** 2 / (a.shape[-1] * (a * a).sum(-1) + 1e-6)).mean())
    return torch.stack(densities).mean()


def non_zero_shares(activations):
    return torch.stack([(a.detach() > 0).float().mean() for a in activations])


@torch.no_grad()
def held_out_metrics(model, tokens):
    """Loss per token, and each block's share of non-zero activations."""
    count = len(tokens) // model.config.context_length
    targets = tokens[:count * model.config.context_length].view(count, -1)
    losses, shares = [], []
    for rows in targets.split(BATCH):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, activations = model(F.pad(rows[:, :-1], (1, 0), value=BOS))
        losses.append(F.cross_entropy(logits.float().flatten(0, 1), rows.flatten()) * len(rows))
        shares.append(non_zero_shares(activations) * len(rows))
    return (sum(losses) / count).item(), sum(shares) / count


def rate_factor(step, steps):
    decay = (steps - step) / (DECAY_SHARE * steps)
    return min(1.0, (step + 1) / WARMUP_STEPS, decay)


def density_target(step, steps):
    progress = min(1.0, step / (DENSITY_RAMP_SHARE * steps))
    return DENSITY_START * (DENSITY_END / DENSITY_START) ** progress


def percent_zero(shares):
    return " ".join(f"{100 * (1 - s):.1f}" for s in shares.tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="output of prepare.py")
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stop-at", type=int, help="step to stop at, to resume later")
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(SEED)
    train, held_out = (torch.from_numpy(np.fromfile(args.data / name, np.uint16).astype(np.int64))
                       for name in ("train.bin", "heldout.bin"))
    config = Config()
    model = Model(config)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [model.token_embd.weight, *(p for p in model.parameters() if p.dim() == 1)]
    optimizers = [Muon(matrices, MUON_RATE, WEIGHT_DECAY),
                  torch.optim.AdamW(others, ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)]
    first_step, penalty = 0, LAMBDA_START
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        first_step, penalty = saved["step"], saved["lambda"]

    def save(step):
        scratch = args.checkpoint.with_suffix(".tmp")
        torch.save({"config": dataclasses.asdict(config), "model": model.state_dict(),
                    "optimizers": [o.state_dict() for o in optimizers],
                    "step": step, "lambda": penalty}, scratch)
        os.replace(scratch, args.checkpoint)

    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {BATCH * config.context_length} tokens a step, "
          f"from step {first_step} to {args.steps}", flush=True)
    last_step = min(args.steps, args.stop_at or args.steps)
    started = time.monotonic()
    for step in range(first_step, last_step):
        factor = rate_factor(step, args.steps)
        for optimizer, rate in zip(optimizers, (MUON_RATE, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        inputs, targets = random_windows(train, step, config)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, activations = model(inputs)
        loss = CrossEntropy.apply(logits.flatten(0, 1), targets.flatten())
        (loss + penalty * hoyer_density(activations)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        shares = non_zero_shares(activations)
        error = shares.mean().item() / density_target(step, args.steps) - 1
        penalty *= math.exp(LAMBDA_GAIN * max(-1.0, min(1.0, error)))
        done = step + 1
        if done % 10 == 0:
            speed = (done - first_step) * BATCH * config.context_length / (time.monotonic() - started)
            print(f"step {done} loss {loss.item():.3f} lambda {penalty:.4f} "
                  f"zero % {percent_zero(shares)} tokens/s {speed:.0f}", flush=True)
        if done % args.save_every == 0 or done == last_step:
            save(done)
            held_out_loss, shares = held_out_metrics(model, held_out)
            print(f"step {done} held-out loss {held_out_loss:.4f} "
                  f"zero % {percent_zero(shares)} mean {100 * (1 - shares.mean()):.2f}", flush=True)


if __name__ == "__main__":
    main()
