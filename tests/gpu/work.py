"""Work for a card, as the ranks of the tests do it, with PyTorch: `python work.py KIND SECONDS`."""

import sys
import time


def main() -> None:
    """matmul: keeps the card busy, with a line of log each half second. hang: then starts a kernel that never ends.
    oom: asks for more memory than there is. fault: an assertion in a kernel fails."""
    kind, seconds = sys.argv[1], float(sys.argv[2])
    import torch
    from torch import cuda

    if kind == "oom":
        kept = [torch.empty(16 << 30, dtype=torch.uint8, device="cuda") for _ in range(64)]
        raise SystemExit(f"{len(kept)} times 16 GiB is not too much")
    if kind == "fault":
        print(torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item())
        raise SystemExit("an index of 9 in 4 values is no fault")
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    until, step, said = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < until:
        for _ in range(10):
            left @ right
        cuda.synchronize()
        step += 10
        if time.monotonic() - said >= 0.5:
            said = time.monotonic()
            print(f"step {step}", flush=True)
    if kind == "hang":
        print("the kernel that never ends", flush=True)
        cuda._sleep(1 << 50)
        cuda.synchronize()


if __name__ == "__main__":
    main()
