"""An exported model without heartlm: torch, safetensors and json give the hidden state of every token.

python examples/plain_pytorch.py runs/beats/models/best
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu


def hidden_states(folder: str, codes: torch.Tensor) -> torch.Tensor:
    """Read windows without padding: `codes` int64 `[windows, tokens, facets]` → `[windows, tokens, width]`.

    The code of a facet that means "masked" is the number of its codes.
    """
    w, c = load_file(f"{folder}/model.safetensors"), json.loads(Path(folder, "config.json").read_text())["config"]
    facets, ladder = range(codes.shape[-1]), torch.linspace(0, 1, c["width"] // c["heads"] // 2 + 1)[:-1]
    places = [pad(w[f"embedding.places_{f}"] @ w[f"embedding.project.{f}.weight"].T, (0, 0, 0, 1)) for f in facets]
    x = (torch.cat(places) + w["embedding.free"])[codes + torch.tensor([0, *map(len, places[:-1])]).cumsum(0)].sum(-2)
    turns = torch.polar(torch.ones(1), torch.outer(torch.arange(x.shape[1]), 1e4**-ladder))
    for block in (f"trunk.blocks.{number}" for number in range(c["depth"])):
        y = linear(rms_norm(x, x.shape[-1:], w[f"{block}.norm_attention.weight"], 1e-5), w[f"{block}.qkv.weight"])
        q, k, v = y.unflatten(-1, (3, c["heads"], -1)).permute(2, 0, 3, 1, 4)
        q, k = (torch.view_as_real(torch.complex(*z.chunk(2, -1)) * turns).mT.flatten(-2) for z in (q, k))
        y = scaled_dot_product_attention(q, k, v, is_causal=c["causal"]).transpose(1, 2).flatten(2)
        x = x + linear(y, w[f"{block}.attention_out.weight"])
        y = linear(rms_norm(x, x.shape[-1:], w[f"{block}.norm_feed.weight"], 1e-5), w[f"{block}.gate_up.weight"])
        x = x + linear(silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1], w[f"{block}.feed_out.weight"])
    return rms_norm(x, x.shape[-1:], w["trunk.norm.weight"], 1e-5)


if __name__ == "__main__":
    sizes = json.loads(Path(sys.argv[1], "config.json").read_text())["config"]["facet_sizes"]
    masked = torch.tensor(sizes).expand(1, 8, -1)
    print(hidden_states(sys.argv[1], masked))
