"""Are the Transformers driver's medians right? Needs transformers: python -m pip install 'sark-node[transformers]'.

    python benchmarks/measuring/transformers_bias.py [--rounds 11] [--threads 1] [--runs 60]

An encoder and a language model with random weights. In turns, each in a process of its own: the driver's launch, and a plain loop over
transformers' own API: the encoder's call; the language model's call for one token on the cache that `generate` would keep. Prints the
median of each in ms, the medians of the rounds' ratios (`ours/…`), and the ratios of the best rounds' 5th percentiles (`best/…`), which
other work disturbs least.
"""

from __future__ import annotations

from pathlib import Path

from beside import BiasBenchmark, plain

from drivers.transformers.units import CPU

WARM = 10
MODELS = {"encoder": {"sequence": 128}, "language": {"prompt": 128, "generate": 32}}
PLAIN = """
import functools
import torch, transformers
torch.set_num_threads(threads)
language = model.endswith("language")
kind = transformers.AutoModelForCausalLM if language else transformers.AutoModelForSequenceClassification
net = kind.from_pretrained(model).eval()
mode = torch.inference_mode()  # kept: the mode ends with its object
mode.__enter__()
ids = torch.randint(0, 1000, (1, 128))
def calls():
    while not language:
        yield functools.partial(net, input_ids=ids, attention_mask=torch.ones_like(ids))
    while True:
        cache = transformers.DynamicCache()
        for at in range(32):
            yield functools.partial(net, input_ids=ids[:, at : at + 1], past_key_values=cache, use_cache=True)
"""


def make(folder: Path) -> list[Path]:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    bert = hf.BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=2000
    )
    llama = hf.LlamaConfig(
        num_hidden_layers=4,
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1024,
        vocab_size=2000,
    )
    hf.BertForSequenceClassification(bert).save_pretrained(folder / "encoder")
    hf.LlamaForCausalLM(llama).save_pretrained(folder / "language")
    return [folder / name for name in MODELS]


if __name__ == "__main__":
    BiasBenchmark(
        "transformers", CPU, "transformers", make, {"plain": plain(PLAIN, WARM)}, runs=60, warm=WARM,
        more=lambda model: {"dims": MODELS[model.name]},
    ).main(__doc__)  # fmt: skip
