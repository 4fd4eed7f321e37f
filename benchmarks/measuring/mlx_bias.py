"""Are the MLX driver's medians right? Needs mlx and mlx-lm: python -m pip install 'sark-node[mlx]'.

    python benchmarks/measuring/mlx_bias.py [--rounds 11] [--runs 64]

Language models with random weights on the processor. In turns, each in a process of its own: the driver's launch; mlx-lm's own tool
(`mlx_lm.benchmark`, which requests the next token while the last one is computed, samples it, and reports tokens per second of a whole
generation); a plain loop over mlx-lm's models. An inference is one token after a context of 64. MLX chooses its own number of threads.
Prints the median of each in ms (for the tool the mean), the medians of the rounds' ratios (`ours/…`), and the ratios of the best rounds'
5th percentiles (`best/…`), which the tool does not report.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

from beside import BiasBenchmark, Pair, plain

from drivers.mlx.runtime import runtime, title
from drivers.mlx.units import CPU

WARM, TOKENS = 10, 64
SIZES = {"small": (256, 4), "large": (1024, 4)}
"""Width and layers."""
TOOL = "import sys, mlx.core as mx; mx.set_default_device(mx.Device(mx.cpu, 0)); from mlx_lm.benchmark import main; main()"
RATE = re.compile(r"Averages:.*generation_tps=([0-9.]+)")
PLAIN = f"""
import pathlib
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
mx.set_default_device(mx.Device(mx.cpu, 0))
net, _ = load_model(pathlib.Path(model))
ids = mx.random.randint(0, 1000, (1, {TOKENS}))
def calls():
    while True:
        cache = make_prompt_cache(net)
        mx.eval(net(ids, cache=cache))
        for at in range({TOKENS}):
            token = ids[:, at : at + 1]
            mx.eval(token)
            yield lambda: mx.eval(net(token, cache=cache))
"""


def tool(model: Path, threads: int, runs: int) -> Pair:
    command = [sys.executable, "-c", TOOL, "--model", str(model), "-p", str(TOKENS), "-g", str(TOKENS)]
    done = subprocess.run(
        [*command, "-n", str(max(1, runs // TOKENS))], capture_output=True, text=True, check=True
    )
    found = RATE.search(done.stdout)
    assert found is not None, done.stdout
    return 1e3 / float(found[1]), math.nan


def make(folder: Path) -> list[Path]:
    import torch
    import transformers as hf
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    torch.manual_seed(0)
    words = [f"w{at}" for at in range(2000)]
    own = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, words[0]))
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=own, eos_token=words[1])
    for name, (width, layers) in SIZES.items():
        config = hf.LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=8,
            num_key_value_heads=4,
            intermediate_size=2 * width,
            vocab_size=2000,
        )
        hf.LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return [folder / name for name in SIZES]


if __name__ == "__main__":
    dims = {"prompt": TOKENS, "generate": TOKENS, "depth": TOKENS}
    BiasBenchmark(
        "mlx", CPU, title(runtime()), make, {"tool": tool, "plain": plain(PLAIN, WARM)}, runs=TOKENS, warm=WARM,
        more=lambda model: {"dims": dims},
    ).main(__doc__)  # fmt: skip
